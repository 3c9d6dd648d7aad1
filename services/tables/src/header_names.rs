//! The names in the header of a file, and notes about doubtful ones.

use std::path::Path;

use protocol::TableOptions;

use crate::error::Result;
use crate::infer::{cells_of_header, column_names};
use crate::scalar::{parse_float, trim};
use crate::source::{Text, TextFile};

/// Characters of a column name in a note.
const NAME_CHARACTERS: usize = 40;

/// Returns the cells of the first line of a file, as they are written; a blank file has none.
pub fn header_cells(path: &Path, options: &TableOptions) -> Result<Vec<String>> {
    let file = TextFile::open(path, &path.display().to_string(), options)?;
    cells_of_header(&file, options, &mut Text::default())
}

/// Returns notes about doubtful names in a header: a kind, and a sentence that continues the name of the file.
pub fn doubtful_names(cells: &[String]) -> Vec<(&'static str, String)> {
    let is_blank = |cell: &String| cell.trim().is_empty();
    if cells.iter().all(|cell| is_blank(cell) || parse_float(trim(cell.as_bytes())).is_some()) {
        // A row of numbers is data, of which another note tells.
        return Vec::new();
    }
    let names = column_names(cells.to_vec());
    let mut notes = Vec::new();
    let mut note = |kind, of: Vec<usize>, sentence: &dyn Fn(usize, &str) -> String| {
        if let Some(first) = of.first() {
            let more = match of.len() {
                1 => String::new(),
                2 => " (and one more column)".to_owned(),
                count => format!(" (and {} more columns)", count - 1),
            };
            notes.push((kind, sentence(*first, &more)));
        }
    };
    let all = |is: &dyn Fn(usize) -> bool| {
        (0..cells.len()).filter(|&index| is(index)).collect::<Vec<_>>()
    };
    let repeated = all(&|index| !is_blank(&cells[index]) && names[index] != cells[index]);
    note("column names, repeated", repeated, &|index, more| {
        let (name, becomes) = (shown(&cells[index]), shown(&names[index]));
        format!(
            "names several columns {name}, and the next one becomes {becomes}{more}: give each column a name of its own"
        )
    });
    let unnamed = all(&|index| is_blank(&cells[index]));
    note("column names, missing", unnamed, &|index, more| {
        let (number, becomes) = (index + 1, shown(&names[index]));
        format!(
            "has no name for column {number}, which becomes {becomes}{more}: name it in the file"
        )
    });
    let spaced = all(&|index| !is_blank(&cells[index]) && cells[index].trim() != cells[index]);
    note("column names, spaces", spaced, &|index, more| {
        let cell = &cells[index];
        let other = cells.iter().find(|other| *other != cell && other.trim() == cell.trim());
        let other = other
            .map(|other| format!(" and differs from {} only in them", shown(other)))
            .unwrap_or_default();
        let name = shown(cell);
        format!(
            "names a column {name}, which has spaces around it{other}{more}: remove them, or use the name with them"
        )
    });
    // A tab suggests another delimiter, which another note reports.
    let marked = all(&|index| {
        cells[index].contains(|character| character != '\t' && is_invisible(character))
    });
    note("column names, invisible", marked, &|index, more| {
        format!(
            "names a column {}, which has an invisible character{more}: remove it",
            shown(&cells[index])
        )
    });
    notes
}

/// Returns whether a character is invisible, such as a byte order mark that is not at the beginning of a file.
fn is_invisible(character: char) -> bool {
    matches!(character, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2060}' | '\u{feff}')
        || character.is_control()
}

/// Returns a name in quotes, for people. A long one is cut.
fn shown(name: &str) -> String {
    let mut shown: String = name
        .chars()
        .take(NAME_CHARACTERS)
        .map(|character| match is_invisible(character) {
            true => character.escape_unicode().to_string(),
            false => character.to_string(),
        })
        .collect();
    if name.chars().count() > NAME_CHARACTERS {
        shown.push('…');
    }
    format!("`{shown}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notes(cells: &[&str]) -> String {
        let cells: Vec<String> = cells.iter().map(|cell| (*cell).to_owned()).collect();
        doubtful_names(&cells).into_iter().map(|(kind, note)| format!("{kind}: {note}\n")).collect()
    }

    #[test]
    fn ordinary_names_have_no_notes() {
        for cells in [
            &["id", "name"][..],
            &["größe", "a b", "c.1", "1"],
            &["1.5", "1.5", ""],
            &["", ""],
            &[],
        ] {
            assert_eq!(notes(cells), "", "{cells:?}");
        }
    }

    #[test]
    fn surprising_names_are_noted() {
        assert_eq!(
            notes(&["a", "b", "a", "a"]),
            "column names, repeated: names several columns `a`, and the next one becomes `a.1` (and one more column): give \
             each column a name of its own\n"
        );
        assert_eq!(
            notes(&["", "b", "", " "]),
            "column names, missing: has no name for column 1, which becomes `Column1` (and 2 more columns): \
             name it in the file\n"
        );
        assert_eq!(
            notes(&["id", " name", "name"]),
            "column names, spaces: names a column ` name`, which has spaces around it and differs from `name` only in \
             them: remove them, or use the name with them\n"
        );
        assert_eq!(
            notes(&["\u{feff}id", "name"]),
            "column names, invisible: names a column `\\u{feff}id`, which has an invisible character: remove it\n"
        );
        assert!(notes(&[&"x".repeat(500), &"x".repeat(500)]).len() < 300);
    }
}
