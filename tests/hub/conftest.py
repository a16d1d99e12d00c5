from tests.bench.conftest import own_cache, zoo_folder

__all__ = ["own_cache", "zoo_folder"]
