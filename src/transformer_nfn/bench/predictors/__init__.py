"""Models that predict accuracy: one interface, kinds, names, and folders of fitted ones."""
