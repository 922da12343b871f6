"""Caches that hold every token, those out of a window, too."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("transformers.exporters.metadata", reason="pip install 'transformers>=5.23'")

from rmsnorm_export.decoder.caches import whole_caches
from rmsnorm_export.decoder.inputs import sample_inputs
from toolbox.corpus.decoders import decoder as decoder_of

pytestmark = [pytest.mark.export, pytest.mark.slow]


@pytest.mark.parametrize("window", [8, 40])
def test_a_static_cache_holds_more_than_the_window(window: int) -> None:
    """As transformers' own caches write, whichever is shorter: prompt, window or cache."""
    model = decoder_of("mistral", sliding_window=window)
    feeds = sample_inputs(model, {})
    how = {"max_new_tokens": 16, "min_new_tokens": 16, "do_sample": False}
    expected = model.generate(**feeds, **how)
    with whole_caches(static=True):
        written = model.generate(
            **feeds, **how, cache_implementation="static", return_dict_in_generate=True
        )
    assert {layer.keys.shape[2] for layer in written.past_key_values.layers} == {20}
    np.testing.assert_array_equal(written.sequences, expected)
