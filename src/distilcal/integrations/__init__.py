"""distilcal inside other libraries: each module is named after the library that it works with."""
