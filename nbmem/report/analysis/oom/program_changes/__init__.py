"""Try changes of a language model or its training on a failed step."""
