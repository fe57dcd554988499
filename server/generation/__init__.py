"""From engine deltas to the text, logprobs and usage of a request's choices."""
