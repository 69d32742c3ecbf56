"""Functions on tensors, each with its plain twin; knows no model and no request.

The API that models call, all of it through one table of functions::

    from twinpool.kernels.registry import load
    ops = load("auto")                    # or load("reference"), the plain torch twins
    linear = ops.pack_linear(weight, bias)            # once, at load; linear(x) -> y
    experts = ops.pack_experts(gate_up, down)         # experts(x, ids, weights) -> y
    x = ops.embed(table, tokens)
    h = ops.rms_norm(x, weight, eps)
    h = ops.add_rms_norm(x, delta, weight, eps)       # x += delta in place, then the norm of x
    rope = ops.rope(batch.positions, inv_freq)        # once per step, shared by every layer
    y = ops.attention(proj, rope, weights, kv_view, batch)
    y = ops.gated_delta(proj, weights, state_view, batch)
    y = ops.silu_mul(gate_up)
    ids, probs = ops.route(logits, top_k, normalise)
    ops.add_gated(y, shared, gate)                    # y += shared * sigmoid(gate), in place
    y = ops.log_softmax(logits)

Activations are float32, C-contiguous, `[T, ...]`. A result belongs to the caller. The bits that one
token gets do not depend on its batch mates, the chunk it came in, its physical rows and slots, or
the number of threads. This holds for the fast functions; the twins only follow their arithmetic to
rounding.

This file imports neither torch nor Numba. It sets how OpenMP waits, which has to be known before
either loads its OpenMP library.
"""

import os

# A thread that waits for work looks for it for about 100 us, longer than the gap between two
# kernels, and then sleeps. OpenMP's default, milliseconds, makes a step 100 times slower as soon as
# another process wants the processor; not looking at all costs 20-40 % on an idle machine.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
# OpenMP starts a parallel region in 5 us where Numba's own workqueue takes 50.
os.environ.setdefault("NUMBA_THREADING_LAYER", "omp")
