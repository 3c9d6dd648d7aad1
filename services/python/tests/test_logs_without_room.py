"""A log file that cannot be created loses its lines, and nothing else."""

from gristmill import logs


def test_stream_to_a_file_that_cannot_be_made_drops_its_lines(tmp_path):
    (tmp_path / "file").write_text("")
    stream = logs.open_text(tmp_path / "file" / "log.txt", 1000)
    stream.write("line\n")
    stream.flush()
    assert (tmp_path / "file").read_text() == ""


def test_stacks_without_a_file_are_dropped(tmp_path):
    (tmp_path / "sys").write_text("")
    file = logs.register_stack_dump(str(tmp_path), "node", "process000")
    assert file.write(b"stacks") == 6
