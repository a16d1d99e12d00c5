"""What can go wrong with a zoo."""


class RecipeError(ValueError):
    """A recipe is not valid, or asked for what it does not have."""


class StoreError(ValueError):
    """A zoo's folder does not hold what it should."""
