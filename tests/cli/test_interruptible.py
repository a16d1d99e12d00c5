import os
import signal

import pytest
import typer

from transformer_nfn.cli.common import interruptible


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_being_told_to_stop_is_a_friendly_end(
    kind: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    # Whoever runs the tests in the background may have switched Ctrl-C off for them.
    switched = signal.signal(signal.SIGINT, signal.default_int_handler)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(typer.Exit) as end, interruptible():
            os.kill(os.getpid(), kind)
    finally:
        signal.signal(signal.SIGINT, switched)
    assert end.value.exit_code == 130
    assert "the same command continues" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) == before
