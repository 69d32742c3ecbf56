"""The composition root: physical pools, executor, sampler, tokenizer, the engine process."""
