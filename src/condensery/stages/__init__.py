"""The stages of a recipe. Each stage turns a typed config into an artifact folder. ``base`` has the shared types."""
