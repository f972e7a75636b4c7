"""`%%memtrace` leaves the behaviour of the user's cell unchanged."""

import pytest


def test_a_cell_is_traced_and_its_report_is_shown(run, recorder):
    done = run("%%memtrace\nx = 1 + 1\nx")
    assert done.success
    assert done.value == 2
    assert recorder.calls == [("start", "In [1]"), ("stop", "In [1]")]
    assert "<report of In [1]>" in done.out


def test_the_name_and_the_options_reach_the_recorder(run, recorder, shell):
    run("%%memtrace first try --stacks --device 1\npass")
    (trace,) = recorder.traces
    assert trace.name == "first try"
    assert trace.options["stacks"] is True
    assert trace.options["device"] == 1
    assert trace.options["namespace"] is shell.user_ns


def test_leading_blank_lines_do_not_hide_the_line(run, recorder):
    assert run("\n\n  %%memtrace\n  y = 2").success
    assert len(recorder.traces) == 1


def test_another_magic_with_our_name_in_front_is_not_ours(run, recorder):
    assert not run("%%memtracer\npass").success
    assert recorder.traces == []


def test_a_failing_cell_fails_with_its_own_line_number_and_shows_its_report(run, recorder, shell):
    done = run("%%memtrace\n\nx = 1\nraise ValueError('mine')")
    assert isinstance(done.error, ValueError)
    assert done.error.__traceback__.tb_next.tb_lineno == 4
    assert "nbmem" not in done.out.split("<report")[0]
    assert "<report of In [1]>" in done.out
    assert recorder.traces[0].error == "ValueError"
    assert not shell.last_execution_succeeded


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise SystemExit(3)", "SystemExit"),
        ("raise MemoryError('CUDA out of memory')", "MemoryError"),
    ],
)
def test_what_is_no_ordinary_exception_shows_its_report_too(run, recorder, statement, kind):
    done = run(f"%%memtrace\n{statement}")
    assert type(done.error).__name__ == kind
    assert recorder.traces[0].error == kind
    assert "<report of In [1]>" in done.out


def test_a_syntax_error_is_the_users_and_leaves_no_trace_running(run, recorder):
    done = run("%%memtrace\ndef (")
    assert isinstance(done.error, SyntaxError)
    assert "report" not in done.out
    assert recorder.traces[0].stopped == 1
    assert run("%%memtrace\npass").success
    assert len(recorder.traces) == 2


def test_await_works(run, recorder):
    done = run("%%memtrace\nimport asyncio\nawait asyncio.sleep(0)\n41 + 1")
    assert done.success
    assert done.value == 42
    assert len(recorder.traces) == 1


def test_capture_below_captures_the_cell_and_the_report_is_still_shown(run, recorder, shell):
    done = run("%%memtrace\n%%capture captured\nprint('hidden')")
    assert done.success
    assert "hidden" not in done.out
    assert shell.user_ns["captured"].stdout == "hidden\n"
    assert "<report of In [1]>" in done.out
    assert len(recorder.traces) == 1


def test_capture_above_captures_the_report_with_the_cell(run, recorder, shell):
    done = run("%%capture captured\n%%memtrace inner\nprint('hidden')")
    assert done.success
    assert done.out == ""
    assert "hidden" in shell.user_ns["captured"].stdout
    assert [trace.name for trace in recorder.traces] == ["inner"]


def test_time_above_times_and_traces(run, recorder, shell):
    done = run("%%time\n%%memtrace timed\nx = 5\nx * 2")
    assert done.success
    assert "Wall time" in done.out
    assert "<report of timed>" in done.out
    assert shell.user_ns["x"] == 5
    assert len(recorder.traces) == 1


def test_time_above_a_failing_cell_shows_none_of_our_frames(run, recorder, shell):
    done = run("%%time\n%%memtrace\nx = 1\n1 / 0")
    assert "ZeroDivisionError" in done.out
    assert "nbmem" not in done.out
    assert recorder.traces[0].name == "In [1]"
    assert recorder.traces[0].error == "ZeroDivisionError"


def test_a_nested_run_cell_is_part_of_the_cell_that_runs_it(run, recorder, shell):
    done = run("%%memtrace\nget_ipython().run_cell('z = 3')")
    assert done.success
    assert shell.user_ns["z"] == 3
    assert recorder.calls == [("start", "In [1]"), ("stop", "In [1]")]


def test_a_traced_cell_inside_a_traced_cell_becomes_a_block_of_it(run, recorder, shell):
    done = run("%%memtrace outer\nget_ipython().run_cell('%%memtrace inner\\nz = 4')")
    assert done.success
    assert shell.user_ns["z"] == 4
    assert recorder.calls == [("start", "outer"), ("phase", "inner"), ("stop", "outer")]
    assert (
        "nbmem: inner runs while outer is traced, and one trace runs at a time: "
        "its memory is in the report of outer.\n"
    ) in done.err


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "--stack",
            (
                "%%memtrace does not know --stack. Did you mean --stacks? "
                "`%%memtrace --help` lists what can be given."
            ),
        ),
        ("--device x", "--device x is not a card's number. Write 0 for the first card."),
        (
            "--save",
            "--save needs a value: `--save FILE`. It means: save the session to a file.",
        ),
        (
            "--max-peak lots",
            (
                "'lots' is not an amount of memory. "
                "Write a number and a unit, for example 512MiB or 20GiB (1024-based), "
                "or 20GB (1000)."
            ),
        ),
        (
            "the model's run",
            'A quote in "the model\'s run" has no end. Put the other kind around a word with one.',
        ),
        ("--stacks=yes", "--stacks takes no value; write it alone."),
        (
            "--private",
            "--private is about the file of --save. Name that, too: --save run.nbmem.",
        ),
        (
            "--save runs/ --private",
            (
                "Cannot write into a folder of ranks privately: --private is for the recording of "
                "one process. Leave it out, or name a file of one process."
            ),
        ),
    ],
)
def test_a_wrong_option_is_one_sentence_and_the_cell_runs(run, recorder, shell, line, sentence):
    done = run(f"%%memtrace {line}\nran = True")
    assert done.success
    assert shell.user_ns["ran"] is True
    assert done.err == f"nbmem: {sentence} This cell runs untraced.\n"
    assert recorder.traces == []


def test_a_broken_recorder_is_one_sentence_and_the_cell_runs(run, recorder, shell):
    recorder.broken = True
    done = run("%%memtrace\nran = True")
    assert done.success
    assert shell.user_ns["ran"] is True
    assert "could not start the trace (RuntimeError('the recorder is broken'))" in done.err
    assert "this cell runs untraced" in done.err


def test_nothing_recorded_is_one_sentence(run, recorder):
    recorder.nothing = True
    done = run("%%memtrace\npass")
    assert done.success
    assert done.err == "nbmem: Nothing was recorded: torch has used no card in this cell.\n"


def test_a_peak_below_the_limit_passes(run):
    assert run("%%memtrace --max-peak 4GiB\npass").success


def test_a_peak_above_the_limit_fails_the_cell_after_its_report(run, shell):
    done = run("%%memtrace --max-peak 2GiB\npass")
    assert not done.success
    assert not shell.last_execution_succeeded
    message = f"In [1] peaked at {3 << 30} B"
    assert str(done.error) == message
    assert done.out.index("<report of In [1]>") < done.out.index(message)


def test_an_exception_of_the_users_is_not_replaced_by_the_limit(run):
    assert isinstance(run("%%memtrace --max-peak 2GiB\n1 / 0").error, ZeroDivisionError)


def test_save_writes_the_session(run, tmp_path):
    done = run(f"%%memtrace run --save '{tmp_path}/my run.nbmem'\npass")
    assert done.success
    assert (tmp_path / "my run.nbmem").read_text() == "run"


def test_a_private_file_is_asked_for_with_it(run, tmp_path):
    assert run(f"%%memtrace run --save {tmp_path}/run.nbmem --private\npass").success
    assert (tmp_path / "run.nbmem").read_text() == "run in private"
    run(f"%nbmem save '{tmp_path}/my run.nbmem' --private")
    assert (tmp_path / "my run.nbmem").read_text() == "run in private"
    run(f"%nbmem export csv {tmp_path}/run.csv --private")
    assert (tmp_path / "run.csv").read_text() == "csv of run on None in private"


def test_a_statement_is_traced_and_gives_its_value(run, recorder, shell):
    done = run("y = %memtrace --stacks 20 + 1")
    assert done.success
    assert shell.user_ns["y"] == 21
    assert recorder.traces[0].name == "20 + 1"
    assert recorder.traces[0].options["stacks"] is True


def test_a_statement_may_use_the_locals_of_its_function(run, shell):
    done = run("def f(a):\n    %memtrace b = a + 1\n    return a\nf(4)")
    assert done.success
    assert done.value == 4


def test_a_failing_statement_fails_its_cell(run, recorder):
    done = run("%memtrace 1 / 0")
    assert isinstance(done.error, ZeroDivisionError)
    assert recorder.traces[0].error == "ZeroDivisionError"
    assert "<report of 1 / 0>" in done.out


def test_memtrace_alone_says_what_it_needs(run):
    done = run("%memtrace")
    assert done.success
    assert done.err == (
        "nbmem: %memtrace needs a statement to trace: `%memtrace model(x)`. "
        "To trace a whole cell, put %%memtrace on its first line.\n"
    )


def test_a_cell_whose_end_never_came_is_closed_by_the_next(run, recorder, shell):
    post = list(shell.events.callbacks["post_run_cell"])
    shell.events.callbacks["post_run_cell"].clear()
    run("%%memtrace lost\npass")
    shell.events.callbacks["post_run_cell"].extend(post)
    done = run("%%memtrace next\npass")
    assert done.success
    assert [trace.stopped for trace in recorder.traces] == [1, 1]
    assert "<report of lost>" in done.out
    assert "<report of next>" in done.out


@pytest.mark.parametrize("rest", ["", "\nx = 1", "\nx = 1\n", "\nx = 1\n\n", "\n\n"])
def test_a_terminal_waits_for_the_end_of_the_cell_as_for_any_cell_magic(run, shell, rest):
    check = shell.input_transformer_manager.check_complete
    assert check(f"%%memtrace{rest}") == check(f"%%time{rest}")
