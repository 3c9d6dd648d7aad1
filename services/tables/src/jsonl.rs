//! Parses JSON lines into columns: one object per line, and each member is a cell.
//!
//! The parser checks a line and finds its members without building values: a cell is a piece of the line, without an
//! allocation. Objects and arrays stay JSON text, which becomes `dict` and `list` in the frame. Other values of a text
//! column that are not strings stay JSON, too.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::builder::Builder;
use crate::column::Column;
use crate::delimited::Table;
use crate::problem::Problem;
use crate::problems::{Misfit, Origin};
use crate::scalar::is_number;
use crate::split::is_blank;

/// One value of a flat object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    /// `null` or missing.
    Missing,
    Boolean(bool),
    /// In its written form; includes `NaN` and `Infinity`, which Python writes.
    Number(&'a [u8]),
    Text(Cow<'a, str>),
    /// An object or an array in its written form.
    Nested(&'a [u8]),
}

/// Returns the lines of a text that are not blank, with their positions.
pub(crate) fn lines(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < text.len() {
            let start = at;
            let end = memchr::memchr(b'\n', &text[at..]).map_or(text.len(), |length| at + length);
            at = end + 1;
            // JSON lines have no delimiter that could be white space.
            if !is_blank(&text[start..end], b'\n') {
                return Some((start, &text[start..end]));
            }
        }
        None
    })
}

/// Calls `each` with those members of the object in `line` whose key `find` knows, and with the result of `find`.
/// Skips the other members. Returns whether a text held half of a surrogate pair, which became U+FFFD.
pub(crate) fn members<'a, K>(
    line: &'a [u8],
    mut find: impl FnMut(Cow<'a, str>) -> Option<K>,
    mut each: impl FnMut(K, Value<'a>),
) -> Result<bool, &'static str> {
    let mut cursor = Cursor { line, at: 0, has_half_pair: false };
    cursor.skip_space();
    cursor.expect(b'{', "the line is not a JSON object")?;
    cursor.skip_space();
    if cursor.peek() == Some(b'}') {
        cursor.at += 1;
    } else {
        loop {
            cursor.skip_space();
            let key = cursor.string()?;
            cursor.skip_space();
            cursor.expect(b':', "a colon is missing in the JSON object")?;
            cursor.skip_space();
            match find(key) {
                Some(known) => each(known, cursor.value()?),
                None => cursor.skip_value()?,
            }
            cursor.skip_space();
            match cursor.peek() {
                Some(b',') => cursor.at += 1,
                Some(b'}') => {
                    cursor.at += 1;
                    break;
                }
                _ => return Err("the JSON object is not complete"),
            }
        }
    }
    cursor.skip_space();
    if cursor.at == line.len() {
        Ok(cursor.has_half_pair)
    } else {
        Err("the line has more text after the JSON object")
    }
}

const NO_VALUE: &str = "the JSON object has an invalid value";
const TOO_DEEP: &str = "the JSON object is nested too deeply";

/// Python's own parser supports about 1000 levels.
const DEPTH_MAX: usize = 500;

struct Cursor<'a> {
    line: &'a [u8],
    at: usize,
    has_half_pair: bool,
}

impl<'a> Cursor<'a> {
    fn peek(&self) -> Option<u8> {
        self.line.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8, otherwise: &'static str) -> Result<(), &'static str> {
        if self.peek() != Some(byte) {
            return Err(otherwise);
        }
        self.at += 1;
        Ok(())
    }

    /// Skips a string, and returns whether it contains escapes.
    fn skip_string(&mut self) -> Result<bool, &'static str> {
        const UNENDED: &str = "a string in the JSON object does not end";
        self.expect(b'"', "a string is missing in the JSON object")?;
        let mut has_escape = false;
        loop {
            let length = memchr::memchr2(b'"', b'\\', &self.line[self.at..]).ok_or(UNENDED)?;
            self.at += length + 1;
            if self.line[self.at - 1] == b'"' {
                return Ok(has_escape);
            }
            has_escape = true;
            self.at += 1;
            if self.at > self.line.len() {
                return Err(UNENDED);
            }
        }
    }

    fn string(&mut self) -> Result<Cow<'a, str>, &'static str> {
        const NO_TEXT: &str = "the JSON object has a string that is not UTF-8";
        let opening = self.at;
        if self.skip_string()? {
            let written =
                std::str::from_utf8(&self.line[opening + 1..self.at - 1]).map_err(|_| NO_TEXT)?;
            return self
                .unescaped(written)
                .map(Cow::Owned)
                .ok_or("the JSON object has an invalid escape");
        }
        std::str::from_utf8(&self.line[opening + 1..self.at - 1])
            .map(Cow::Borrowed)
            .map_err(|_| NO_TEXT)
    }

    /// Returns the text of a string with escapes; `None` if one is invalid.
    fn unescaped(&mut self, written: &str) -> Option<String> {
        let mut text = String::with_capacity(written.len());
        let mut rest = written;
        while let Some((plain, escape)) = rest.split_once('\\') {
            text.push_str(plain);
            let kind = escape.chars().next()?;
            rest = &escape[kind.len_utf8()..];
            text.push(match kind {
                '"' | '\\' | '/' => kind,
                'b' => '\u{8}',
                'f' => '\u{c}',
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'u' => {
                    let unit = code_unit(rest)?;
                    rest = &rest[4..];
                    let low = || rest.strip_prefix("\\u").and_then(code_unit);
                    let pair = (0xD800..0xDC00).contains(&unit).then(low).flatten();
                    match char::decode_utf16([Some(unit), pair].into_iter().flatten()).next()? {
                        Ok(character) => {
                            rest = if character.len_utf16() == 2 { &rest[6..] } else { rest };
                            character
                        }
                        Err(_) => {
                            self.has_half_pair = true;
                            char::REPLACEMENT_CHARACTER
                        }
                    }
                }
                _ => return None,
            });
        }
        text.push_str(rest);
        Some(text)
    }

    /// Reads a complete and valid object or array.
    fn nested(&mut self) -> Result<&'a [u8], &'static str> {
        let start = self.at;
        // The closing characters of the open objects and arrays.
        let mut open = Vec::new();
        loop {
            match self.peek() {
                Some(opening @ (b'{' | b'[')) => {
                    if open.len() == DEPTH_MAX {
                        return Err(TOO_DEEP);
                    }
                    self.at += 1;
                    open.push(if opening == b'{' { b'}' } else { b']' });
                    self.skip_space();
                    if self.peek() != open.last().copied() {
                        self.member(&open)?;
                        continue;
                    }
                }
                Some(b'"') => drop(self.string()?),
                _ => self.legal_word().map(drop)?,
            }
            // After a value, or before the end of an empty object or array.
            loop {
                self.skip_space();
                match self.peek() {
                    Some(b',') => {
                        self.at += 1;
                        self.skip_space();
                        self.member(&open)?;
                        break;
                    }
                    end if end == open.last().copied() => {
                        self.at += 1;
                        open.pop();
                        if open.is_empty() {
                            return Ok(&self.line[start..self.at]);
                        }
                    }
                    _ => return Err(NO_VALUE),
                }
            }
        }
    }

    /// Skips the key of the next member of an object.
    fn member(&mut self, open: &[u8]) -> Result<(), &'static str> {
        if open.last() == Some(&b'}') {
            self.string()?;
            self.skip_space();
            self.expect(b':', "a colon is missing in the JSON object")?;
            self.skip_space();
        }
        Ok(())
    }

    fn legal_word(&mut self) -> Result<Value<'a>, &'static str> {
        let word = self.word();
        match word {
            b"null" => Ok(Value::Missing),
            b"true" => Ok(Value::Boolean(true)),
            b"false" => Ok(Value::Boolean(false)),
            b"NaN" | b"Infinity" | b"-Infinity" => Ok(Value::Number(word)),
            _ if is_number(word) => Ok(Value::Number(word)),
            _ => Err(NO_VALUE),
        }
    }

    /// Reads a number, a truth value or `null`.
    fn word(&mut self) -> &'a [u8] {
        let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\r' | b'\n');
        let rest = &self.line[self.at..];
        let word = &rest[..rest.iter().position(ends).unwrap_or(rest.len())];
        self.at += word.len();
        word
    }

    /// Skips a value. Checks it only as far as necessary to find its end.
    fn skip_value(&mut self) -> Result<(), &'static str> {
        match self.peek() {
            Some(b'"') => self.skip_string().map(drop),
            Some(b'{' | b'[') => self.nested().map(drop),
            _ if self.word().is_empty() => Err(NO_VALUE),
            _ => Ok(()),
        }
    }

    fn value(&mut self) -> Result<Value<'a>, &'static str> {
        match self.peek() {
            Some(b'"') => return self.string().map(Value::Text),
            Some(b'{' | b'[') => return self.nested().map(Value::Nested),
            _ => {}
        }
        self.legal_word()
    }
}

/// Returns the code unit that four hexadecimal digits at the beginning of a text represent.
fn code_unit(text: &str) -> Option<u16> {
    let digits =
        text.get(..4).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
    u16::from_str_radix(digits, 16).ok()
}

/// Returns valid JSON without the white space between its parts.
fn compact<'a>(json: &[u8], scratch: &'a mut Vec<u8>) -> &'a [u8] {
    scratch.clear();
    let mut in_string = false;
    let mut escaped = false;
    for &byte in json {
        if in_string {
            in_string = escaped || byte != b'"';
            escaped = !escaped && byte == b'\\';
        } else if byte.is_ascii_whitespace() {
            continue;
        } else {
            in_string = byte == b'"';
        }
        scratch.push(byte);
    }
    scratch
}

impl Table {
    /// Appends the objects of the text of `origin`.
    pub fn append_jsonl(&mut self, origin: &mut Origin) {
        let text = origin.text.as_slice();
        let names = std::mem::take(&mut self.names);
        let indexes: HashMap<&str, usize> =
            names.iter().enumerate().map(|(index, name)| (name.as_str(), index)).collect();
        // The column of a member by the position of its name. Members without a column go after the last one.
        let mut columns = vec![None; names.len()];
        for (column, &index) in self.selected.iter().enumerate() {
            columns[index] = Some(column);
        }
        let dropped = self.selected.len();
        let mut cells = vec![Value::Missing; dropped + 1];
        let mut scratch = Vec::new();
        for (position, line) in lines(text) {
            cells.fill(Value::Missing);
            let mut unknown: Option<String> = None;
            // Members are mostly in the order of the columns.
            let mut next = 0;
            let find = |key: Cow<str>| {
                let index = match names.get(next) {
                    Some(name) if *name == key => Some(next),
                    _ => indexes.get(key.as_ref()).copied(),
                };
                match index {
                    Some(index) => {
                        next = index + 1;
                        columns[index]
                    }
                    None if self.is_selection => None,
                    None => {
                        unknown.get_or_insert_with(|| key.into_owned());
                        Some(dropped)
                    }
                }
            };
            let parsed = members(line, find, |column, value| cells[column] = value);
            let has_half_pair = match parsed {
                Ok(has_half_pair) => has_half_pair,
                Err(reason) => {
                    self.problems.unreadable_record(origin, position, reason);
                    continue;
                }
            };
            for ((&index, column), cell) in self.selected.iter().zip(&mut self.columns).zip(&cells)
            {
                let written = match cell {
                    Value::Missing => &b""[..],
                    Value::Boolean(true) => b"true",
                    Value::Boolean(false) => b"false",
                    Value::Number(number) => number,
                    Value::Text(text) => text.as_bytes(),
                    Value::Nested(json) => compact(json, &mut scratch),
                };
                if let Err(misfit) = take(column, cell, written) {
                    self.problems.misfit(
                        origin,
                        position,
                        self.rows,
                        &names[index],
                        written,
                        misfit,
                    );
                } else if origin.text.replaced || has_half_pair {
                    let problem =
                        if has_half_pair { Problem::HalfPair } else { Problem::InvalidBytes };
                    self.problems.replaced(problem, origin, position, &names[index], written);
                }
            }
            if let Some(key) = unknown {
                let defect =
                    format_args!("\"{key}\" is in none of the first rows, which name the columns");
                let (origin, row) = ((&mut *origin, position), Some(self.rows));
                self.problems.defect(Problem::UnknownKey, origin, row, Some(key.as_str()), defect);
            }
            if let Some(texts) = &mut self.texts {
                texts.take_text(line);
            }
            if let Some(numbers) = &mut self.line_numbers {
                numbers.add(text, position);
            }
            self.rows += 1;
        }
        self.names = names;
    }
}

fn take(column: &mut Column, value: &Value, written: &[u8]) -> Result<(), Misfit> {
    match (column, value) {
        (column, Value::Missing) => {
            column.builder().take_missing();
            Ok(())
        }
        (Column::Text(texts) | Column::Blank(texts), value)
            if texts.keeps_json && !matches!(value, Value::Text(_)) =>
        {
            texts.take_json(written);
            Ok(())
        }
        // An empty string is not missing.
        (Column::Text(texts) | Column::Blank(texts), _) => {
            texts.take_text(written);
            Ok(())
        }
        (Column::Integer(values), _) => values.take(written),
        (Column::Float(values), _) => values.take(written),
        (column, _) => column.builder().take(written),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(line: &str) -> Result<Vec<(String, String)>, &'static str> {
        let mut found = Vec::new();
        members(line.as_bytes(), Some, |key, value| {
            found.push((key.into_owned(), format!("{value:?}")))
        })?;
        Ok(found)
    }

    #[test]
    fn values_of_all_kinds_are_parsed() {
        let line = r#" {"a": 1, "b":-1.5e3 ,"c":true,"d":null,"e":"x\n\"y","f":[1, {"g": "a b"}],"h":NaN} "#;
        let mut found = Vec::new();
        members(line.as_bytes(), Some, |key, value| found.push((key.into_owned(), value)))
            .expect("valid");
        assert_eq!(found[0], ("a".to_owned(), Value::Number(b"1")));
        assert_eq!(found[1], ("b".to_owned(), Value::Number(b"-1.5e3")));
        assert_eq!(found[2], ("c".to_owned(), Value::Boolean(true)));
        assert_eq!(found[3], ("d".to_owned(), Value::Missing));
        assert_eq!(found[4], ("e".to_owned(), Value::Text("x\n\"y".into())));
        assert_eq!(found[5], ("f".to_owned(), Value::Nested(br#"[1, {"g": "a b"}]"#)));
        assert_eq!(found[6], ("h".to_owned(), Value::Number(b"NaN")));
        assert_eq!(compact(br#"[1, {"g" : "a \" b"}]"#, &mut Vec::new()), br#"[1,{"g":"a \" b"}]"#);
    }

    #[test]
    fn line_that_is_not_an_object_is_reported() {
        for line in [
            "",
            "1",
            "[1]",
            "{",
            "{\"a\"",
            "{\"a\":",
            "{\"a\":1",
            "{\"a\":1,}",
            "{\"a\":01}",
            "{\"a\":1.}",
            "{\"a\":+1}",
            "{\"a\":tru}",
            "{\"a\":1}x",
            "{\"a\":[1}",
            "{\"a\":\"x}",
            "{\"a\":\"\\x\"}",
            "{a:1}",
            "{\"a\":\"\\",
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
        assert_eq!(parsed("{}"), Ok(vec![]));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]
        #[test]
        fn parser_accepts_the_lines_that_serde_json_accepts(line in r#"\{("[ab]":(-?[0-9]{1,3}(\.[0-9])?([eE][+-]?[0-9])?|true|null|"x"|\[\]|[a-z"\\{}\[\]:,0-9.]{1,4}),?){0,3}\}?"#) {
            let theirs = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&line);
            // The grammar does not limit numbers to doubles.
            let is_range = theirs.as_ref().is_err_and(|error| error.to_string().contains("out of range"));
            prop_assert!(is_range || theirs.is_ok() == parsed(&line).is_ok(), "{} {:?}", line, theirs);
        }
    }
}
