import builtins
from pathlib import Path

import pptx
import pytest
from pptx.util import Inches

from epic_rag.loading import LoadedDocument, SkippedSource, load_paths
from epic_rag.loading.document import SkipSourceError
from epic_rag.loading.pptx import load_pptx


def load(path: Path) -> LoadedDocument:
    return next(load_pptx(path, path.name))


def reason(path: Path) -> str:
    with pytest.raises(SkipSourceError) as caught:
        load(path)
    return str(caught.value)


def written(path: Path) -> Path:
    presentation = pptx.Presentation()
    first = presentation.slides.add_slide(presentation.slide_layouts[1])
    first.shapes.title.text = "Boats"
    first.placeholders[1].text = "The ferry\nleaves at nine."
    first.notes_slide.notes_text_frame.text = "Say it slowly."
    second = presentation.slides.add_slide(presentation.slide_layouts[5])
    second.shapes.title.text = "Fares"
    low = second.shapes.add_textbox(Inches(1), Inches(6), Inches(2), Inches(1))
    low.text_frame.text = "low"
    group = second.shapes.add_group_shape()
    group.shapes.add_textbox(Inches(1), Inches(3), Inches(2), Inches(1)).text_frame.text = "in a group"
    table = second.shapes.add_table(2, 2, Inches(1), Inches(2), Inches(4), Inches(1)).table
    for place, words in enumerate(("who", "day", "adult", "3")):
        table.cell(place // 2, place % 2).text = words
    presentation.save(path)
    return path


def test_titles_text_tables_groups_and_notes(tmp_path):
    document = load(written(tmp_path / "file.pptx"))
    assert document.text.split("\n\n") == [
        "Boats",
        "The ferry\nleaves at nine.",
        "Notes: Say it slowly.",
        "Fares",
        "who | day\nadult | 3",
        "in a group",
        "low",
    ]
    assert [section.path for section in document.sections] == [("Boats",), ("Fares",)]
    assert document.text[document.sections[1].start_char :].startswith("Fares\n")
    assert (document.title, document.has_lines) == ("Boats", False)


def test_the_title_of_the_properties_is_taken_unless_it_is_the_programs_own(tmp_path):
    path = written(tmp_path / "file.pptx")
    presentation = pptx.Presentation(path)
    for given, title in (("PowerPoint Presentation", "Boats"), ("A title", "A title")):
        presentation.core_properties.title = given
        presentation.save(path)
        assert load(path).title == title


def test_empty_and_damaged_files_are_named(tmp_path):
    path = tmp_path / "file.pptx"
    pptx.Presentation().save(path)
    assert reason(path) == "empty"
    path.write_bytes(b"no zip at all")
    assert reason(path).startswith("broken pptx")
    whole = written(path).read_bytes()
    for cut in range(0, len(whole), 1997):
        path.write_bytes(whole[:cut] + b"\xff" * 9 + whole[cut + 9 :])
        (found,) = load_paths([path])
        assert isinstance(found, LoadedDocument | SkippedSource)


def test_without_the_extra_the_reason_names_it(tmp_path, monkeypatch):
    genuine = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name == "pptx":
            raise ModuleNotFoundError(name)
        return genuine(name, *args, **kwargs)

    path = written(tmp_path / "file.pptx")
    monkeypatch.setattr(builtins, "__import__", refuse)
    assert reason(path) == "reading pptx needs an extra: pip install 'epic-rag[office]'"
