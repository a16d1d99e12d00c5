"""The function of a checkpoint, and inputs on which two of them agree or differ."""
