"""Which part of a cut width a share holds, in elements of the width."""

from __future__ import annotations

from tbkit.plan.placement import Range, Share


def span(share: Share, unit: str, head_dim: int) -> Range:
    """The range [start, stop) that a share holds of the width counted in ``unit``: query_head, kv_head or mlp."""
    if unit == "query_head":
        return share.query_heads[0] * head_dim, share.query_heads[1] * head_dim
    if unit == "kv_head":
        return share.kv_heads[0] * head_dim, (share.kv_heads[-1] + 1) * head_dim
    return share.mlp
