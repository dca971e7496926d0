"""Networks of picture pipelines, on arrays; parts have the names that published files give them."""
