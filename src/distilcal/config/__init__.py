"""Settings: the schema of recipes, how they are loaded, and the example recipes that come with the package."""
