"""Networks of image pipelines, on arrays; parts have the names that published files use."""
