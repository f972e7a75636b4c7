"""Tips: rules that read a recording and say what to do, with numbers.

Silence is the first quality of a tip. Activations dominate every training run, the cache of a loop
is nine tenths releasable after `zero_grad`, and expandable segments would save 22% of some plain
runs: all of it true, none of it advice. So a remedy that has a price (time, numerics, a restart)
needs a reason to speak: an OOM, a retry, nine tenths of the card in use, or `--all`. "Fragmented"
needs more than a gap between reserved and allocated: what lies unused must grow after the second
step, or a request must have failed over it.

A tip needs a share of the card, too: a third for the cache, a tenth for the allocator's settings, a
hundredth for gradients. A replay that does not take what the run took says nothing.

What a tip frees is counted in blocks: `memory_allocated()` falls by the block, not by the tensor.
And a `del` frees only what nothing else reaches, so every figure comes from the holders.
"""
