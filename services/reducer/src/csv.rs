//! Fields of delimited text, quoted only if necessary.

/// Separator and quoting of fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dialect {
    pub separator: String,
    pub quote: char,
    /// Quote every text field, like `csv.QUOTE_ALL` and `csv.QUOTE_NONNUMERIC`.
    pub quote_all: bool,
    /// Quote no field, like `csv.QUOTE_NONE`.
    pub quote_none: bool,
    pub line_end: String,
}

impl Default for Dialect {
    fn default() -> Self {
        Self {
            separator: ",".into(),
            quote: '"',
            quote_all: false,
            quote_none: false,
            line_end: "\n".into(),
        }
    }
}

impl Dialect {
    /// Appends one field without a separator.
    pub fn push_field(&self, field: &str, into: &mut String) {
        if self.quote_none || !(self.quote_all || self.is_special(field)) {
            into.push_str(field);
            return;
        }
        into.push(self.quote);
        for character in field.chars() {
            if character == self.quote {
                into.push(self.quote);
            }
            into.push(character);
        }
        into.push(self.quote);
    }

    /// Appends a text so that no spreadsheet reads it as a formula.
    pub fn push_inert(&self, text: &str, into: &mut String) {
        match text.starts_with(['=', '+', '-', '@', '\t', '\r']) {
            true => self.push_field(&format!("'{text}"), into),
            false => self.push_field(text, into),
        }
    }

    /// Whether a field contains a separator, a quote or a line break.
    fn is_special(&self, field: &str) -> bool {
        let bytes = field.as_bytes();
        if let ([separator], Ok(quote)) = (self.separator.as_bytes(), u8::try_from(self.quote))
            && quote.is_ascii()
        {
            return memchr::memchr3(*separator, quote, b'\n', bytes).is_some()
                || memchr::memchr(b'\r', bytes).is_some();
        }
        memchr::memchr2(b'\n', b'\r', bytes).is_some()
            || field.contains(self.quote)
            || field.contains(&*self.separator)
    }

    /// Returns one line of text fields.
    pub fn line(&self, fields: &[String]) -> String {
        let mut line = String::new();
        // Quotes a single empty field, because readers skip empty lines.
        if let [field] = fields
            && field.is_empty()
            && !self.quote_none
        {
            line.extend([self.quote, self.quote]);
        }
        for (position, field) in fields.iter().enumerate() {
            if position > 0 {
                line.push_str(&self.separator);
            }
            if fields.len() > 1 || !field.is_empty() {
                self.push_field(field, &mut line);
            }
        }
        line.push_str(&self.line_end);
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(dialect: &Dialect, fields: &[&str]) -> String {
        dialect.line(&fields.iter().map(|&field| field.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn fields_are_quoted_only_if_necessary() {
        let comma = Dialect::default();
        assert_eq!(
            line(&comma, &["a b", "c,d", "e\"f", "g\nh", ""]),
            "a b,\"c,d\",\"e\"\"f\",\"g\nh\",\n"
        );
        let space = Dialect { separator: " ".into(), ..Dialect::default() };
        assert_eq!(line(&space, &["a b", "c,d"]), "\"a b\" c,d\n");
        assert_eq!(line(&comma, &[""]), "\"\"\n");
        let all = Dialect { quote_all: true, ..Dialect::default() };
        assert_eq!(line(&all, &["a", ""]), "\"a\",\"\"\n");
    }
}
