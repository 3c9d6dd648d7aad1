//! `{Store}/{Brand}/{file_name}.{extension}`: columns from the end of a path.
//!
//! A part `{name}` matches the longest possible text without a slash. `{name:yyyy/MM/dd}` matches a time; its value has
//! the form `yyyyMMddHHmmss`. `*` matches any text without a slash. Everything else matches itself. The format
//! covers whole names: from the start of a file or folder name to the end of the path.
//!
//! Values in names of folders as Hive writes them (`Store={Store}/`) are percent-decoded.

use percent_encoding::percent_decode;

/// The reason why a `partition_format` or its keys are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// A column without end.
    #[error("'{{' without '}}' in '{0}'")]
    Unclosed(String),
    /// An end without column.
    #[error("'}}' without '{{' in '{0}'")]
    Unopened(String),
    /// A format without columns.
    #[error("'{0}' names no column: write at least one as {{name}}")]
    NoColumn(String),
    /// A column without a name.
    #[error("a column without a name: write {{name}}")]
    NoName,
    /// A column that appears twice.
    #[error("the column '{0}' appears twice")]
    Repeated(String),
    /// An invalid form of a time.
    #[error("'{0}' is not a time: its parts are yyyy, MM, dd, HH, mm and ss")]
    NoTime(String),
    /// A partition key that is not one of the columns.
    #[error("partition key '{key}' is not in partition_format, which has: {columns}")]
    UnknownKey {
        /// The key.
        key: String,
        /// The columns, separated by commas.
        columns: String,
    },
}

/// A parsed `partition_format`.
#[derive(Clone, Debug)]
pub struct PartitionFormat {
    pieces: Vec<Piece>,
    names: Vec<String>,
    /// Slashes inside the format.
    slashes: usize,
}

#[derive(Clone, Debug)]
enum Piece {
    Literal(Vec<u8>),
    /// Text without a slash, for the column of this position.
    Text(usize),
    /// The same after `=`, where names of folders have escapes.
    Escaped(usize),
    /// Digits of a time, for the column of this position.
    Digits(usize, TimePart),
    /// Text without a slash that belongs to no column.
    Wildcard,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimePart {
    Year,
    Month,
    Day,
    Hour,
    Minute,
    Second,
}

const TIME_PARTS: [(&str, TimePart); 6] = [
    ("yyyy", TimePart::Year),
    ("MM", TimePart::Month),
    ("dd", TimePart::Day),
    ("HH", TimePart::Hour),
    ("mm", TimePart::Minute),
    ("ss", TimePart::Second),
];

impl TimePart {
    fn digits(self) -> usize {
        if self == Self::Year { 4 } else { 2 }
    }

    /// Returns the offset of the part in `yyyyMMddHHmmss`.
    fn offset(self) -> usize {
        match self {
            Self::Year => 0,
            Self::Month => 4,
            Self::Day => 6,
            Self::Hour => 8,
            Self::Minute => 10,
            Self::Second => 12,
        }
    }

    fn is_legal(self, digits: &[u8]) -> bool {
        let number = digits.iter().fold(0, |number, digit| number * 10 + u32::from(digit - b'0'));
        match self {
            Self::Year => true,
            Self::Month => (1..=12).contains(&number),
            Self::Day => (1..=31).contains(&number),
            Self::Hour => number < 24,
            Self::Minute | Self::Second => number < 60,
        }
    }
}

/// The default of the parts that the format does not contain.
const TIME_DEFAULT: &[u8] = b"00010101000000";

impl PartitionFormat {
    /// Parses a format.
    pub fn parse(format: &str) -> Result<Self, FormatError> {
        let mut rest = format;
        for elided in ["**/", "…/", ".../", "./", "/"] {
            rest = rest.strip_prefix(elided).unwrap_or(rest);
        }
        let mut parsed = Self { pieces: Vec::new(), names: Vec::new(), slashes: 0 };
        while let Some(position) = rest.find(['{', '}', '*']) {
            parsed.literal(&rest[..position]);
            let after = &rest[position + 1..];
            match rest.as_bytes()[position] {
                b'*' => {
                    parsed.pieces.push(Piece::Wildcard);
                    rest = after;
                }
                b'{' => {
                    let end =
                        after.find('}').ok_or_else(|| FormatError::Unclosed(format.to_owned()))?;
                    parsed.column(&after[..end])?;
                    rest = &after[end + 1..];
                }
                _ => return Err(FormatError::Unopened(format.to_owned())),
            }
        }
        parsed.literal(rest);
        if parsed.names.is_empty() {
            return Err(FormatError::NoColumn(format.to_owned()));
        }
        Ok(parsed)
    }

    /// Returns the columns, in the order of the format.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Fails if a partition key is not one of the columns.
    pub fn check_keys(&self, keys: &[String]) -> Result<(), FormatError> {
        match keys.iter().find(|key| !self.names.contains(key)) {
            None => Ok(()),
            Some(key) => {
                Err(FormatError::UnknownKey { key: key.clone(), columns: self.names.join(", ") })
            }
        }
    }

    /// Returns the values of all columns; `None` if the path does not match, or if a value is not valid UTF-8.
    pub fn values(&self, path: &[u8]) -> Option<Vec<String>> {
        let mut slashes = path.iter().rev().enumerate().filter(|&(_, &byte)| byte == b'/');
        let suffix_length = slashes.nth(self.slashes).map_or(path.len(), |(position, _)| position);
        let mut found: Vec<Option<Vec<u8>>> = vec![None; self.names.len()];
        if !matches(&self.pieces, &path[path.len() - suffix_length..], &mut found) {
            return None;
        }
        found.into_iter().map(|value| String::from_utf8(value?).ok()).collect()
    }

    fn literal(&mut self, text: &str) {
        if !text.is_empty() {
            self.slashes += text.matches('/').count();
            self.pieces.push(Piece::Literal(text.as_bytes().to_vec()));
        }
    }

    fn column(&mut self, definition: &str) -> Result<(), FormatError> {
        let (name, time) = match definition.split_once(':') {
            Some((name, time)) => (name.trim(), Some(time)),
            None => (definition.trim(), None),
        };
        if name.is_empty() {
            return Err(FormatError::NoName);
        }
        if self.names.iter().any(|other| other == name) {
            return Err(FormatError::Repeated(name.to_owned()));
        }
        let column = self.names.len();
        self.names.push(name.to_owned());
        match time {
            None if matches!(self.pieces.last(), Some(Piece::Literal(before)) if before.ends_with(b"=")) =>
            {
                self.pieces.push(Piece::Escaped(column));
            }
            None => self.pieces.push(Piece::Text(column)),
            Some(time) => self.time(column, time)?,
        }
        Ok(())
    }

    fn time(&mut self, column: usize, mut time: &str) -> Result<(), FormatError> {
        let first = self.pieces.len();
        let whole = time;
        'parts: while let Some(character) = time.chars().next() {
            for (letters, part) in TIME_PARTS {
                if let Some(rest) = time.strip_prefix(letters) {
                    self.pieces.push(Piece::Digits(column, part));
                    time = rest;
                    continue 'parts;
                }
            }
            if character.is_alphanumeric() {
                return Err(FormatError::NoTime(whole.to_owned()));
            }
            let (literal, rest) = time.split_at(character.len_utf8());
            self.literal(literal);
            time = rest;
        }
        if self.pieces[first..].iter().any(|piece| matches!(piece, Piece::Digits(..))) {
            Ok(())
        } else {
            Err(FormatError::NoTime(whole.to_owned()))
        }
    }
}

/// Matches all of `text`, each text part with the longest value for which the rest matches.
fn matches(pieces: &[Piece], text: &[u8], found: &mut [Option<Vec<u8>>]) -> bool {
    let Some((piece, rest)) = pieces.split_first() else { return text.is_empty() };
    let (column, shortest) = match piece {
        Piece::Literal(literal) => {
            return text.strip_prefix(&literal[..]).is_some_and(|text| matches(rest, text, found));
        }
        Piece::Digits(column, part) => {
            let Some((digits, text)) = text.split_at_checked(part.digits()) else { return false };
            if !digits.iter().all(u8::is_ascii_digit) || !part.is_legal(digits) {
                return false;
            }
            let time = found[*column].get_or_insert_with(|| TIME_DEFAULT.to_vec());
            time[part.offset()..part.offset() + digits.len()].copy_from_slice(digits);
            return matches(rest, text, found);
        }
        Piece::Text(column) | Piece::Escaped(column) => (Some(*column), 1),
        Piece::Wildcard => (None, 0),
    };
    let longest = text.iter().position(|&byte| byte == b'/').unwrap_or(text.len());
    (shortest..=longest).rev().any(|length| {
        let matched = matches(rest, &text[length..], found);
        if let (true, Some(column)) = (matched, column) {
            let value = &text[..length];
            let is_escaped = matches!(piece, Piece::Escaped(_)) && text.get(length) == Some(&b'/');
            let decoded = percent_decode(value).decode_utf8().ok().filter(|_| is_escaped);
            found[column] = Some(
                decoded.map_or_else(|| value.to_vec(), |decoded| decoded.into_owned().into_bytes()),
            );
        }
        matched
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(format: &str, path: &str) -> Option<Vec<String>> {
        PartitionFormat::parse(format).expect("valid").values(path.as_bytes())
    }

    #[test]
    fn values_come_from_the_end_of_the_path() {
        for (format, path, expected) in [
            (
                "{user}/{season}/{genres}.wav",
                "/data/user1/winter/disco.wav",
                Some(vec!["user1", "winter", "disco"]),
            ),
            (
                "…/{user}/{season}/{genres}.wav",
                "/data/user1/fall/rock.wav",
                Some(vec!["user1", "fall", "rock"]),
            ),
            (
                "/{user}/{season}/{genres}.wav",
                "user1/winter/disco.wav",
                Some(vec!["user1", "winter", "disco"]),
            ),
            ("{user}/{season}/{genres}.wav", "/data/user1/winter/disco.mp3", None),
            ("{user}/{season}/{genres}.wav", "winter/disco.wav", None),
            (
                "{Store}/{file_name}.{extension}",
                "/d/1000/a.b.csv",
                Some(vec!["1000", "a.b", "csv"]),
            ),
            ("{a}-{b}", "/x-y-z", Some(vec!["x-y", "z"])),
            ("{a}/*", "/data/k/anything", Some(vec!["k"])),
            ("part-{n}/*.csv", "/data/part-7/x.csv", Some(vec!["7"])),
            ("part-{n}/*.csv", "/data/xpart-7/x.csv", None),
            ("{n}/x", "//x", None),
            ("{date:yyyy/MM/dd}/{n}.csv", "/d/2020/02/29/7.csv", Some(vec!["20200229000000", "7"])),
            ("{date:yyyy/MM/dd}/{n}.csv", "/d/2020/13/29/7.csv", None),
            (
                "log-{at:yyyyMMdd-HHmmss}.csv",
                "/d/log-20200102-030405.csv",
                Some(vec!["20200102030405"]),
            ),
            ("{at:HH}.csv", "/d/07.csv", Some(vec!["00010101070000"])),
            ("city={city}/*", "/d/city=S%C3%A3o%20Paulo%2FSP/x", Some(vec!["São Paulo/SP"])),
            ("city={city}/*", "/d/city=100%/x", Some(vec!["100%"])),
            ("city={city}/*", "/d/city=%FF/x", Some(vec!["%FF"])),
            ("{city}/k={file}.csv", "/d/a%20b/k=c%20d.csv", Some(vec!["a%20b", "c%20d"])),
        ] {
            let expected: Option<Vec<String>> =
                expected.map(|values| values.into_iter().map(str::to_owned).collect());
            assert_eq!(values(format, path), expected, "{format} {path}");
        }
    }

    #[test]
    fn invalid_utf8_has_no_value() {
        let format = PartitionFormat::parse("{a}/{b}").expect("valid");
        assert_eq!(format.values(b"/data/\xff/x"), None);
        assert_eq!(
            format.values("/däta/ü/x".as_bytes()),
            Some(vec!["ü".to_owned(), "x".to_owned()])
        );
    }

    #[test]
    fn invalid_format_is_rejected() {
        for (format, expected) in [
            ("{a", "'{' without '}' in '{a'"),
            ("a}", "'}' without '{' in 'a}'"),
            ("a/b", "'a/b' names no column: write at least one as {name}"),
            ("{a}/{a}", "the column 'a' appears twice"),
            ("{}", "a column without a name: write {name}"),
            ("{a:yyyy/QQ}", "'yyyy/QQ' is not a time: its parts are yyyy, MM, dd, HH, mm and ss"),
            ("{a:/}", "'/' is not a time: its parts are yyyy, MM, dd, HH, mm and ss"),
        ] {
            assert_eq!(PartitionFormat::parse(format).expect_err("rejected").to_string(), expected);
        }
    }

    #[test]
    fn key_must_be_a_column() {
        let format = PartitionFormat::parse("{user}/{season}/{genres}.wav").expect("valid");
        assert_eq!(format.check_keys(&["genres".to_owned(), "user".to_owned()]), Ok(()));
        assert_eq!(
            format.check_keys(&["year".to_owned()]).expect_err("rejected").to_string(),
            "partition key 'year' is not in partition_format, which has: user, season, genres"
        );
    }
}
