"""Tips: rules that read a recording and say what to do, with numbers.

A tip must be rare. Activations dominate every training run, nine tenths of a loop's cache are
releasable after `zero_grad`, and expandable segments would save 22% of some plain runs. All of this
is true, and none of it is advice. So a remedy with a price (time, numerics, a restart) needs a
reason: an OOM, a retry, nine tenths of the card in use, or `--all`. "Fragmented" requires more than
a gap between reserved and allocated. Unused bytes must grow after the second step, or a request
must have failed because of them.

A tip also needs a share of the card: a third for the cache, a tenth for the allocator's settings, a
hundredth for gradients. A replay that differs from the run shows nothing.

Savings are counted in blocks: `memory_allocated()` falls by the block, not by the tensor. A `del`
frees only memory without other references, so every figure comes from the holders.
"""
