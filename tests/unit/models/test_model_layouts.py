"""Both generations of projection layout come out as one."""

from __future__ import annotations

import torch

from twinpool.kernels.views import GatedDeltaWeights
from twinpool.models import qwen3_5, qwen3_next
from twinpool.models.config import DecoderConfig, DenseSpec, MoeSpec, RotarySpec
from twinpool.models.weights import read_attention, read_moe
from twinpool.spec.layer import GatedDeltaSpec, GqaSpec
from twinpool.spec.model import ModelSpec
from twinpool.units import DType

HIDDEN = 2
LINEAR = GatedDeltaSpec(
    num_key_heads=2, num_value_heads=4, key_width=3, value_width=5, conv_width=4
)
FULL = GqaSpec(num_query_heads=2, num_kv_heads=1, key_width=4, value_width=4)
CONFIG = DecoderConfig(
    spec=ModelSpec(
        model_type="qwen3_next",
        architecture="",
        layers=(LINEAR, FULL),
        hidden_size=HIDDEN,
        vocab_size=7,
        context_length=9,
        dtype=DType.FLOAT32,
    ),
    family="qwen3_next",
    norm_eps=1e-6,
    mlps=(DenseSpec(width=3),) * 2,
    rotary=RotarySpec(theta=1e4, width=2),
    eos_token_ids=(),
)


class _Named:
    """Gives tensors whose values say which tensor and row they come from."""

    def __init__(self, **tensors: torch.Tensor) -> None:
        self.tensors = tensors

    def has(self, name: str) -> bool:
        return name in self.tensors

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        tensor = self.tensors.get(name.removesuffix(".weight"))
        if tensor is None:
            tensor = torch.zeros(shape)
        assert tensor.shape == shape
        return tensor


def _rows(count: int, offset: int) -> torch.Tensor:
    return (torch.arange(count) + offset).float()[:, None].expand(count, HIDDEN).contiguous()


def test_grouped_and_separate_gated_delta_projections_read_the_same() -> None:
    query, key = _rows(6, 0), _rows(6, 100)
    value, z = _rows(20, 200), _rows(20, 300)
    b, a = _rows(4, 400), _rows(4, 500)
    separate = _Named(
        in_proj_qkv=torch.cat([query, key, value]), in_proj_z=z, in_proj_b=b, in_proj_a=a
    )
    groups = []
    for group in range(2):
        two = slice(10 * group, 10 * group + 10)
        three = slice(3 * group, 3 * group + 3)
        groups += [query[three], key[three], value[two], z[two]]
    pairs = torch.cat([b[:2], a[:2], b[2:], a[2:]])
    grouped = _Named(in_proj_qkvz=torch.cat(groups), in_proj_ba=pairs)
    one = qwen3_5.read_gated_delta(separate, "", LINEAR, CONFIG, torch.float32)
    other = qwen3_next.read_gated_delta(grouped, "", LINEAR, CONFIG, torch.float32)
    expected = torch.cat([query, key, value, z, b, a])
    assert torch.equal(one.in_proj, expected)
    assert torch.equal(other.in_proj, expected)


def test_conv_taps_and_decay_are_stored_as_the_kernels_read_them() -> None:
    taps = torch.arange(32 * 4).float().view(32, 1, 4)
    source = _Named(conv1d=taps, A_log=torch.tensor([0.0, 1.0, 2.0, 3.0]))
    small = qwen3_5.read_gated_delta(source, "", LINEAR, CONFIG, torch.bfloat16).small
    assert isinstance(small, GatedDeltaWeights)
    assert torch.equal(small.conv_weight[0], taps[:, 0, 0])
    assert torch.equal(small.decay_rate, -torch.exp(torch.tensor([0.0, 1.0, 2.0, 3.0])))


def test_the_gate_of_each_query_head_moves_behind_all_queries() -> None:
    both = torch.cat([_rows(4, 0), _rows(4, 100), _rows(4, 10), _rows(4, 110)])
    source = _Named(q_proj=both, k_proj=_rows(4, 200), v_proj=_rows(4, 300))
    read = read_attention(source, "", FULL, CONFIG, torch.float32)
    starts = read.in_proj[::4, 0].tolist()
    assert starts == [0, 10, 100, 110, 200, 300]


def test_experts_in_one_tensor_read_as_experts_one_by_one() -> None:
    spec = MoeSpec(num_experts=3, num_chosen=2, width=4, shared_width=5, is_normalised=True)
    gate_up = torch.arange(3 * 8 * HIDDEN).float().view(3, 8, HIDDEN)
    down = torch.arange(3 * HIDDEN * 4).float().view(3, HIDDEN, 4)
    parts = {}
    for expert in range(3):
        parts[f"experts.{expert}.gate_proj"] = gate_up[expert, :4]
        parts[f"experts.{expert}.up_proj"] = gate_up[expert, 4:]
        parts[f"experts.{expert}.down_proj"] = down[expert]
    fused = _Named(**{"experts.gate_up_proj": gate_up, "experts.down_proj": down})
    for source in (fused, _Named(**parts)):
        read = read_moe(source, "", spec, HIDDEN, torch.float32)
        assert torch.equal(read.gate_up, gate_up)
        assert torch.equal(read.down, down)
