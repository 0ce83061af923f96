"""How a job's parallelism numbers its ranks."""

import pytest

from tuner.base.errors import BadInput
from tuner.jobs.workload.grouped import KINDS, kind_of_name, layout_of


def test_groups_are_those_of_megatron() -> None:
    """Of 16 GPUs with tp=2 and pp=4, as the docstring of initialize_model_parallel has them."""
    layout = layout_of("tp=2,pp=4", 16)
    assert layout.groups("tp") == tuple((rank, rank + 1) for rank in range(0, 16, 2))
    assert layout.groups("pp") == ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
    assert layout.groups("dp") == ((0, 2), (1, 3), (4, 6), (5, 7), (8, 10), (9, 11), (12, 14), (13, 15))


def test_context_parallel_ranks_lie_between_tensor_and_data_parallel_ones() -> None:
    layout = layout_of("tp=4,cp=2", 16)
    assert layout.groups("cp")[:4] == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert layout.group_of("dp", 1) == (1, 9)
    assert layout.group_of("dp-cp", 1) == (1, 5, 9, 13)
    assert layout.group_of("tp-cp", 1) == tuple(range(8))


def test_experts_have_degrees_of_their_own() -> None:
    """Without context parallelism, and with another tensor parallelism."""
    layout = layout_of("tp=2,cp=2,pp=2,ep=4", 32)
    assert layout.group_of("ep", 0) == (0, 2, 4, 6)
    assert layout.group_of("edp", 0) == (0, 8)
    split = layout_of("tp=2,cp=2,pp=2,ep=4,etp=1", 32)
    assert split.group_of("ep", 0) == (0, 1, 2, 3)
    assert split.group_of("edp", 0) == (0, 4, 8, 12)
    assert "etp" not in split.kinds


def test_replicas_are_outside_of_shards() -> None:
    """HSDP: torchtitan's mesh is pp, dp_replicate, dp_shard, cp, tp, the outermost first."""
    layout = layout_of("tp=2,replicate=2", 16)
    assert layout.group_of("dp-shard", 0) == (0, 2, 4, 6)
    assert layout.group_of("dp-replicate", 0) == (0, 8)


def test_an_order_may_have_pipelines_inside() -> None:
    layout = layout_of("tp=2,pp=2,order=tp-cp-ep-pp-dp", 8)
    assert layout.group_of("pp", 0) == (0, 2)
    assert layout.group_of("dp", 0) == (0, 4)


@pytest.mark.parametrize("text", ["tp=2,cp=2,pp=2,ep=4", "tp=8", "replicate=4,pp=2", "tp=2,ep=2,order=tp-cp-pp-dp-ep"])
def test_every_rank_is_in_one_group_of_each_kind(text: str) -> None:
    layout = layout_of(text, 32)
    for kind in KINDS:
        if kind not in ("ep", "etp", "etp-ep", "edp") or layout.ep > 1:
            assert sorted(rank for group in layout.groups(kind) for rank in group) == list(range(32))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("3 (TENSOR_MODEL_PARALLEL_GROUP)", "tp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp-cp"),
        ("EXPERT_DATA_PARALLEL_GROUP", "edp"),
        ("0 (default_pg)", "all"),
        ("mesh_dp_shard_cp", "dp-shard-cp"),
        ("mesh_tp", "tp"),
        ("dp-replicate", "dp-replicate"),
        ("PP", "pp"),
        ("0x5eed", None),
    ],
)
def test_frameworks_names_are_known(name: str, kind: str | None) -> None:
    assert kind_of_name(name) == kind


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tp=3", "tp x cp x pp is 3; valid: a divisor of 32 ranks"),
        ("tp=64", "tp x cp x pp is 64; valid: a divisor of 32 ranks"),
        ("tp=64,dp=1", "tp x cp x pp x dp is 64; valid: 32"),
        ("tp=2,dp=2", "is 4; valid: 32"),
        ("tp", "valid: tp=N"),
        ("vp=2", "valid: tp=N"),
        ("tp=2,tp=2", "valid: tp=N"),
        ("tp=0", "a whole number from 1"),
        ("order=tp-dp", "valid: each once of"),
        ("replicate=3", "3 replicas of 32"),
        ("ep=5", "valid: a divisor of 32"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        layout_of(text, 32)
