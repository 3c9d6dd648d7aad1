//! JSON Schemas, read into rules (`compile.rs`) that check values.
//!
//! The keywords of the drafts that people and libraries write for rows; `compile.rs` lists them. A schema with another
//! keyword is refused, so that none is ignored without notice. The libraries for the whole standard turn on features of
//! crates that every role uses (`serde_json` with slower numbers), for keywords that rows do not need.

mod compile;

use std::cmp::Ordering;

use regex_lite::Regex;
use serde_json::{Number, Value};

use crate::{is_day, is_instant, shown};

/// Deepest nesting of rules. A definition may refer to itself.
const DEPTH_MAX: usize = 200;

/// A schema as rules.
pub(crate) struct JsonSchema {
    /// The schema itself is the first.
    nodes: Vec<Vec<Rule>>,
}

/// The position of a schema among the nodes.
type Node = usize;

enum Rule {
    Nothing,
    Types(Vec<Type>),
    OneOf(Vec<Value>),
    /// A number, and how a value must compare with it.
    Bound(Number, &'static Bound),
    MultipleOf(Number),
    /// Characters, items or properties.
    Length {
        of: Type,
        min: usize,
        max: usize,
    },
    Pattern(Regex),
    Format(Format),
    Required(Vec<String>),
    Properties {
        named: Vec<(String, Node)>,
        patterns: Vec<(Regex, Node)>,
        others: Option<Node>,
    },
    Names(Node),
    Items {
        first: Vec<Node>,
        rest: Option<Node>,
    },
    Unique,
    All(Vec<Node>),
    Any(Vec<Node>),
    ExactlyOne(Vec<Node>),
    Not(Node),
    If {
        condition: Node,
        then: Option<Node>,
        otherwise: Option<Node>,
    },
}

/// A limit of numbers.
struct Bound {
    keyword: &'static str,
    words: &'static str,
    /// Whether a number that compares like this with the limit is within it.
    holds: fn(Ordering) -> bool,
}

static BOUNDS: [Bound; 4] = [
    Bound { keyword: "minimum", words: "at least", holds: Ordering::is_ge },
    Bound { keyword: "exclusiveMinimum", words: "more than", holds: Ordering::is_gt },
    Bound { keyword: "maximum", words: "at most", holds: Ordering::is_le },
    Bound { keyword: "exclusiveMaximum", words: "less than", holds: Ordering::is_lt },
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Type {
    Null,
    Boolean,
    Integer,
    Number,
    String,
    Array,
    Object,
}

#[derive(Clone, Copy)]
enum Format {
    Date,
    DateTime,
}

/// A value that does not fit.
pub(crate) struct Misfit {
    /// Its path, as people write it: `lines[0].price`.
    pub field: String,
    pub reason: String,
}

impl Misfit {
    fn new(reason: String) -> Self {
        Self { field: String::new(), reason }
    }

    fn expected(what: &str, value: &Value) -> Self {
        Self::new(format!("expected {what}, got {}", shown(value)))
    }

    fn in_property(self, name: &str) -> Self {
        let dot = if self.field.is_empty() || self.field.starts_with('[') { "" } else { "." };
        Self { field: format!("{name}{dot}{}", self.field), ..self }
    }

    fn in_item(self, position: usize) -> Self {
        let dot = if self.field.is_empty() || self.field.starts_with('[') { "" } else { "." };
        Self { field: format!("[{position}]{dot}{}", self.field), ..self }
    }
}

impl Type {
    const ALL: [(Self, &str); 7] = [
        (Self::Null, "null"),
        (Self::Boolean, "boolean"),
        (Self::Integer, "integer"),
        (Self::Number, "number"),
        (Self::String, "string"),
        (Self::Array, "array"),
        (Self::Object, "object"),
    ];

    fn word(self) -> &'static str {
        Self::ALL.iter().find(|(kind, _)| *kind == self).map_or("", |(_, word)| word)
    }

    fn has(self, value: &Value) -> bool {
        match (self, value) {
            (Self::Null, Value::Null)
            | (Self::Boolean, Value::Bool(_))
            | (Self::Number, Value::Number(_))
            | (Self::String, Value::String(_))
            | (Self::Array, Value::Array(_))
            | (Self::Object, Value::Object(_)) => true,
            (Self::Integer, Value::Number(number)) => {
                !number.is_f64() || number.as_f64().is_some_and(|number| number.fract() == 0.0)
            }
            _ => false,
        }
    }
}

impl JsonSchema {
    /// Returns why a value does not fit.
    pub fn misfit(&self, value: &Value) -> Option<Misfit> {
        self.check(0, value, 0).err()
    }

    fn fits(&self, node: Node, value: &Value, depth: usize) -> bool {
        self.check(node, value, depth).is_ok()
    }

    fn check(&self, node: Node, value: &Value, depth: usize) -> Result<(), Misfit> {
        if depth > DEPTH_MAX {
            return Err(Misfit::new("the schema or the row is nested too deeply".to_owned()));
        }
        self.nodes[node].iter().try_for_each(|rule| self.check_rule(rule, value, depth + 1))
    }

    fn check_rule(&self, rule: &Rule, value: &Value, depth: usize) -> Result<(), Misfit> {
        let expect = |fits: bool, what: &dyn Fn() -> String| match fits {
            true => Ok(()),
            false => Err(Misfit::expected(&what(), value)),
        };
        match (rule, value) {
            (Rule::Nothing, _) => Err(Misfit::new("not allowed".to_owned())),
            (Rule::Types(types), _) => {
                expect(types.iter().any(|kind| kind.has(value)), &|| in_words(types))
            }
            (Rule::OneOf(values), _) => {
                expect(values.iter().any(|one| same(one, value)), &|| match &values[..] {
                    [one] => shown(one),
                    several => format!("one of {}", shown(&Value::Array(several.to_vec()))),
                })
            }
            (Rule::Bound(limit, Bound { words, holds, .. }), Value::Number(number)) => {
                expect(holds(compare(number, limit)), &|| format!("{words} {limit}"))
            }
            (Rule::MultipleOf(unit), Value::Number(number)) => {
                expect(is_multiple(number, unit), &|| format!("a multiple of {unit}"))
            }
            (Rule::Length { of, min, max }, _) => {
                let (length, unit) = match (of, value) {
                    (Type::String, Value::String(text)) => (text.chars().count(), "characters"),
                    (Type::Array, Value::Array(items)) => (items.len(), "items"),
                    (Type::Object, Value::Object(properties)) => (properties.len(), "properties"),
                    _ => return Ok(()),
                };
                expect((*min..=*max).contains(&length), &|| match *max {
                    usize::MAX => format!("at least {min} {unit}"),
                    _ => format!("{min} to {max} {unit}"),
                })
            }
            (Rule::Pattern(pattern), Value::String(text)) => {
                expect(pattern.is_match(text), &|| {
                    format!("a text that matches {:?}", pattern.as_str())
                })
            }
            (Rule::Format(Format::DateTime), Value::String(text)) => {
                expect(is_instant(text), &|| "date-time".to_owned())
            }
            (Rule::Format(Format::Date), Value::String(text)) => {
                expect(is_day(text), &|| "date".to_owned())
            }
            _ => self.check_parts(rule, value, depth),
        }
    }

    /// Checks the properties of an object and the items of an array.
    fn check_parts(&self, rule: &Rule, value: &Value, depth: usize) -> Result<(), Misfit> {
        match (rule, value) {
            (Rule::Required(names), Value::Object(properties)) => {
                match names.iter().find(|name| !properties.contains_key(*name)) {
                    Some(name) => Err(Misfit::new("missing".to_owned()).in_property(name)),
                    None => Ok(()),
                }
            }
            (Rule::Properties { named, patterns, others }, Value::Object(properties)) => {
                properties.iter().try_for_each(|(name, value)| {
                    let own =
                        named.iter().filter(|(known, _)| known == name).map(|(_, node)| *node);
                    let matching = patterns
                        .iter()
                        .filter(|(pattern, _)| pattern.is_match(name))
                        .map(|(_, node)| *node);
                    let mut nodes: Vec<Node> = own.chain(matching).collect();
                    if nodes.is_empty() {
                        nodes.extend(*others);
                    }
                    let mut checked = nodes.into_iter().map(|node| self.check(node, value, depth));
                    checked
                        .try_for_each(|checked| checked.map_err(|misfit| misfit.in_property(name)))
                })
            }
            (Rule::Names(node), Value::Object(properties)) => {
                properties.keys().try_for_each(|name| {
                    let checked = self.check(*node, &Value::String(name.clone()), depth);
                    checked.map_err(|misfit| {
                        Misfit::new(format!("name: {}", misfit.reason)).in_property(name)
                    })
                })
            }
            (Rule::Items { first, rest }, Value::Array(items)) => {
                items.iter().enumerate().try_for_each(|(position, item)| {
                    let Some(node) = first.get(position).or(rest.as_ref()) else { return Ok(()) };
                    self.check(*node, item, depth).map_err(|misfit| misfit.in_item(position))
                })
            }
            (Rule::Unique, Value::Array(items)) => {
                let is_repeated =
                    |at: usize| items[..at].iter().any(|earlier| same(earlier, &items[at]));
                match (1..items.len()).find(|at| is_repeated(*at)) {
                    Some(at) => Err(Misfit::new("repeats an earlier item".to_owned()).in_item(at)),
                    None => Ok(()),
                }
            }
            _ => self.check_schemas(rule, value, depth),
        }
    }

    /// Checks the value against other schemas.
    fn check_schemas(&self, rule: &Rule, value: &Value, depth: usize) -> Result<(), Misfit> {
        match rule {
            Rule::All(nodes) => nodes.iter().try_for_each(|node| self.check(*node, value, depth)),
            Rule::Any(nodes) => {
                let mut misfits = Vec::with_capacity(nodes.len());
                for node in nodes {
                    match self.check(*node, value, depth) {
                        Ok(()) => return Ok(()),
                        Err(misfit) => misfits.push(misfit),
                    }
                }
                Err(self.fits_none(nodes, misfits, value))
            }
            Rule::ExactlyOne(nodes) => {
                let checked = nodes.iter().map(|node| self.check(*node, value, depth));
                let misfits: Vec<Misfit> = checked.filter_map(Result::err).collect();
                match nodes.len() - misfits.len() {
                    0 => Err(self.fits_none(nodes, misfits, value)),
                    1 => Ok(()),
                    several => Err(Misfit::new(format!("fits {several} schemas of oneOf"))),
                }
            }
            Rule::Not(node) => match self.fits(*node, value, depth) {
                true => Err(Misfit::new(format!("{} fits the schema of not", shown(value)))),
                false => Ok(()),
            },
            Rule::If { condition, then, otherwise } => {
                let node = if self.fits(*condition, value, depth) { then } else { otherwise };
                node.map_or(Ok(()), |node| self.check(node, value, depth))
            }
            _ => Ok(()),
        }
    }

    /// Returns why a value fits none of these schemas: their types if the value has none of them, otherwise why it does
    /// not fit the first one that has its type. `misfits`: one for each schema. Schemas may be nested in one another, so
    /// checking the value again would double the time with each level.
    fn fits_none(&self, nodes: &[Node], misfits: Vec<Misfit>, value: &Value) -> Misfit {
        let types_of = |node: &Node| {
            self.nodes[*node]
                .iter()
                .find_map(|rule| if let Rule::Types(types) = rule { Some(types) } else { None })
        };
        let has_type =
            |node: &Node| types_of(node).is_none_or(|types| types.iter().any(|one| one.has(value)));
        let first = nodes.iter().zip(misfits).find(|(node, _)| has_type(node));
        first.map_or_else(
            || {
                let types: Vec<Type> =
                    nodes.iter().filter_map(types_of).flatten().copied().collect();
                Misfit::expected(&in_words(&types), value)
            },
            |(_, misfit)| misfit,
        )
    }
}

fn in_words(types: &[Type]) -> String {
    types.iter().map(|kind| kind.word()).collect::<Vec<_>>().join(" or ")
}

/// Returns the number as an integer, if it is one that an `i128` holds; 1.0 is.
fn integer(number: &Number) -> Option<i128> {
    let whole = |float: f64| (float.fract() == 0.0 && float.abs() < 1e38).then_some(float as i128);
    number.as_i128().or_else(|| number.as_f64().and_then(whole))
}

/// Compares two numbers exactly: as `f64`, integers from 2^53 on would be equal to others.
fn compare(left: &Number, right: &Number) -> Ordering {
    if let (Some(left), Some(right)) = (integer(left), integer(right)) {
        return left.cmp(&right);
    }
    // One of them has a fraction, or is larger than every integer of JSON here. An integer is compared with what is below
    // the fraction first.
    let float = |number: &Number| number.as_f64().unwrap_or(f64::NAN);
    match (integer(left), integer(right)) {
        (Some(whole), None) => with_fraction(whole, float(right)),
        (None, Some(whole)) => with_fraction(whole, float(left)).reverse(),
        _ => float(left).total_cmp(&float(right)),
    }
}

/// Compares an integer with a number that has a fraction or is beyond `i128`.
fn with_fraction(whole: i128, float: f64) -> Ordering {
    match float.abs() < 1e38 {
        true => whole.cmp(&(float.floor() as i128)).then(Ordering::Less),
        false if float > 0.0 => Ordering::Less,
        false => Ordering::Greater,
    }
}

/// Whether a number is a multiple of a positive unit.
fn is_multiple(number: &Number, unit: &Number) -> bool {
    if let (Some(number), Some(unit)) = (integer(number), integer(unit)) {
        return number % unit == 0;
    }
    let quotient = number.as_f64().unwrap_or(f64::NAN) / unit.as_f64().unwrap_or(f64::NAN);
    // 0.3 is a multiple of 0.1.
    (quotient - quotient.round()).abs() < 1e-9
}

/// Whether two values are the same in JSON Schema, where 1 and 1.0 are.
fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => compare(left, right).is_eq(),
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len()
                && left.iter().zip(right).all(|(left, right)| same(left, right))
        }
        (Value::Object(left), Value::Object(right)) => {
            let is_in_right = |(name, value): (&String, &Value)| {
                right.get(name).is_some_and(|other| same(value, other))
            };
            left.len() == right.len() && left.iter().all(is_in_right)
        }
        _ => left == right,
    }
}
