"""Model match: the exact bytes of a model, held against what a boot log allows.

Finds which flag would make a model fit a log that it does not fit. Pure; knows no file.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from twinpool.errors import ConfigError
from twinpool.memory.recover import Mismatch, Recovered, mismatches
from twinpool.spec.geometry import Geometry, geometry_of
from twinpool.spec.model import ModelSpec
from twinpool.units import DType

_TPS = (1, 2, 4, 8, 16, 32)
_PPS = (1, 2, 4, 8)
_STATES = (DType.FLOAT32, DType.BFLOAT16)
_ROWS = (DType.BFLOAT16, DType.FP8, DType.FLOAT32)
# No flag sets the dtype of conv states, so the log decides: bfloat16 in nearly every server.
_CONVS = (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """How a model is laid out on a rank.

    Attributes:
        tp: Tensor parallel ranks.
        pp: Pipeline stages.
        kv_dtype: Dtype of rows; None: that of the weights.
        state_dtype: Dtype of recurrent states; None: what the config says.
    """

    tp: int = 1
    pp: int = 1
    kv_dtype: DType | None = None
    state_dtype: DType | None = None

    def nearest(
        self, spec: ModelSpec, recovered: Recovered
    ) -> tuple[Geometry, tuple[Mismatch, ...]]:
        """Return the bytes of the model laid out so, and where a log does not bear them out.

        Raises:
            ConfigError: If the model cannot be laid out so.
        """
        kv_dtype = self.kv_dtype or (spec.dtype if spec.has_dtype else DType.BFLOAT16)
        tried = []
        for conv in _CONVS:
            geometry = geometry_of(
                spec,
                kv_dtype=kv_dtype,
                state_dtype=self.state_dtype,
                conv_dtype=conv,
                tp=self.tp,
                pp=self.pp,
            )
            tried.append((geometry, mismatches(recovered, geometry)))
        return min(tried, key=lambda pair: len(pair[1]))


def match_model(spec: ModelSpec, name: str, recovered: Recovered, variant: Variant) -> Geometry:
    """Return the bytes of a model that fits a log.

    Args:
        spec: The model.
        name: What to call it in errors.
        recovered: From the log.
        variant: How the log's server laid it out, as far as is known.

    Raises:
        ConfigError: If a number of the model lies outside what the log allows; the hint says
            which flag makes it fit.
    """
    geometry, wrong = variant.nearest(spec, recovered)
    if not wrong:
        return geometry
    fitting = next(_fitting(spec, recovered, variant), None)
    raise ConfigError(
        f"{name} at {_layout(variant, geometry)} does not fit the log: "
        + "; ".join(_describe(mismatch) for mismatch in wrong),
        hint=f"it fits with {_flags(variant, fitting)}"
        if fitting
        else "check --model, --tp, --pp, --kv-cache-dtype, --mamba-ssm-dtype and --page-size: "
        "no usual value of up to three of them makes it fit",
    )


def _fitting(spec: ModelSpec, recovered: Recovered, variant: Variant) -> Iterator[Variant]:
    """Yield the layouts that fit, those with the fewest changes first."""
    changes: dict[str, tuple[object, ...]] = {
        "tp": _TPS,
        "kv_dtype": _ROWS,
        "state_dtype": _STATES,
        "pp": _PPS,
    }
    for count in range(1, 4):
        for names in itertools.combinations(changes, count):
            for values in itertools.product(*(changes[name] for name in names)):
                other = replace(variant, **dict(zip(names, values, strict=True)))  # type: ignore[arg-type]
                try:
                    wrong = other.nearest(spec, recovered)[1]
                except ConfigError:
                    continue
                if not wrong:
                    yield other


def _describe(mismatch: Mismatch) -> str:
    printed = mismatch.printed
    allowed = f"{printed.low:,}" if printed.is_exact else f"{printed.low:,} to {printed.high:,}"
    return f"{mismatch.name} are {mismatch.expected:,}, the log has {allowed}"


def _layout(variant: Variant, geometry: Geometry) -> str:
    stages = f", pp {variant.pp}" if variant.pp > 1 else ""
    return (
        f"tp {variant.tp}{stages}, {geometry.kv_dtype.value} rows and "
        f"{geometry.state_dtype.value} states"
    )


def _flags(variant: Variant, fitting: Variant) -> str:
    flags = {
        "tp": "--tp",
        "pp": "--pp",
        "kv_dtype": "--kv-cache-dtype",
        "state_dtype": "--mamba-ssm-dtype",
    }
    changed = [
        (flag, getattr(fitting, name))
        for name, flag in flags.items()
        if getattr(fitting, name) != getattr(variant, name)
    ]
    return " ".join(
        f"{flag} {value.value if isinstance(value, DType) else value}" for flag, value in changed
    )
