"""The stages of a recipe: each turns a typed config into one artifact folder; ``base`` defines the shared types."""
