"""The allocator's settings, read as torch reads them."""

import pytest

from nbmem.allocator.rounding import LARGE_SEGMENT, NO_DIVISIONS
from nbmem.allocator.settings import AllocatorSettings
from nbmem.core.errors import UsageError
from nbmem.core.units import MIB


def test_every_key():
    settings = AllocatorSettings.parse(
        "max_split_size_mb: 128, garbage_collection_threshold:0.6,expandable_segments:True,"
        "max_non_split_rounding_mb:40,large_segment_size_mb:32,per_process_memory_fraction:0.5,"
        "roundup_power2_divisions:8,throw_on_cudamalloc_oom:True,pinned_num_register_threads:4,"
        "backend:native,release_lock_on_cudamalloc:True"
    )
    assert settings.max_split_size == 128 * MIB
    assert settings.garbage_collection_threshold == 0.6
    assert settings.expandable_segments
    assert settings.max_non_split_rounding == 40 * MIB
    assert settings.large_segment_size == 32 * MIB
    assert settings.per_process_memory_fraction == 0.5
    assert settings.roundup_power2_divisions == (8,) * 16
    assert settings.throw_on_cudamalloc_oom


def test_keys_that_a_release_does_not_have_do_nothing():
    conf = "max_non_split_rounding_mb:40,large_segment_size_mb:32,throw_on_cudamalloc_oom:True"
    settings = AllocatorSettings.parse(conf, "2.4.1")
    assert settings.max_non_split_rounding == settings.large_segment_size == LARGE_SEGMENT
    assert not settings.throw_on_cudamalloc_oom


def test_new_settings_reset_three_values_and_keep_the_rest():
    old = AllocatorSettings.parse(
        "max_split_size_mb:64,roundup_power2_divisions:4,garbage_collection_threshold:0.5,"
        "expandable_segments:True,large_segment_size_mb:32"
    )
    new = old.updated("")
    assert new.max_split_size is None
    assert new.roundup_power2_divisions == NO_DIVISIONS
    assert new.garbage_collection_threshold == 0.0
    assert new.expandable_segments
    assert new.large_segment_size == 32 * MIB


def test_what_torch_reports_wins_over_the_text():
    divisions = {str(1 << i): 0 for i in range(16)} | {"256": 4}
    settings = AllocatorSettings.from_torch(
        {
            "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,large_segment_size_mb:32",
            "max_split_size": -1,
            "garbage_collection_threshold": 0.25,
            "expandable_segments": True,
            "roundup_power2_divisions": divisions,
            "something_new": 1,
        }
    )
    assert settings.max_split_size is None
    assert settings.garbage_collection_threshold == 0.25
    assert settings.expandable_segments
    assert settings.roundup_power2_divisions[8] == 4
    assert settings.large_segment_size == 32 * MIB
    assert AllocatorSettings.from_torch({}) == AllocatorSettings()


@pytest.mark.parametrize(
    ("conf", "says"),
    [
        ("max_split_size_mb", "not of the form key:value"),
        ("max_split_size_mb:64 expandable_segments:True", "not of the form key:value"),
        ("roundup_power2_divisions:[256:4", "not of the form key:value"),
        ("roundup_power2_divisions:[256]", "not of the form key:value"),
        ("max_split_size_mb:a", "must be a whole number of MiB, at least 20; got 'a'"),
        ("max_split_size_mb:19", "must be a whole number of MiB, at least 20; got '19'"),
        ("garbage_collection_threshold:1.0", "must lie between 0 and 1; got '1.0'"),
        ("garbage_collection_threshold:x", "must lie between 0 and 1; got 'x'"),
        ("expandable_segments:yes", "must be True or False; got 'yes'"),
        ("roundup_power2_divisions:3", "takes powers of two; got '3'"),
        ("roundup_power2_divisions:[100:4]", "takes powers of two; got '100'"),
        ("max_splt_size_mb:64", "no setting 'max_splt_size_mb'. Known here: expandable_segments"),
        ("backend:cudaMallocAsync", "only native is simulated"),
    ],
)
def test_nonsense_is_refused_with_a_sentence(conf, says):
    with pytest.raises(UsageError) as caught:
        AllocatorSettings.parse(conf)
    assert says in str(caught.value)


def test_twenty_mib_is_a_split_size_only_since_2_10():
    assert AllocatorSettings.parse("max_split_size_mb:20", "2.10.0").max_split_size == 20 * MIB
    with pytest.raises(UsageError, match="at least 21"):
        AllocatorSettings.parse("max_split_size_mb:20", "2.9.1")


def test_a_release_must_be_a_version():
    with pytest.raises(UsageError, match="'nightly' is not a release of torch"):
        AllocatorSettings.parse("", "nightly")


@pytest.mark.parametrize(
    ("conf", "release"),
    [
        ("", "n" * 100_000),
        ("n" * 100_000, "2.11.0"),
        ("n" * 100_000 + ":1", "2.11.0"),
        ("max_split_size_mb:" + "n" * 100_000, "2.11.0"),
        ("expandable_segments:" + "n" * 100_000, "2.11.0"),
        ("roundup_power2_divisions:" + "n" * 100_000, "2.11.0"),
    ],
)
def test_a_refusal_is_short_whatever_a_file_says(conf, release):
    with pytest.raises(UsageError) as refused:
        AllocatorSettings.parse(conf, release)
    assert len(str(refused.value)) < 500
