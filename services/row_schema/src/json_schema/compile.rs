//! Reads a JSON Schema into rules.

use std::collections::HashMap;

use regex_lite::Regex;
use serde_json::{Map, Number, Value};

use super::{BOUNDS, Format, JsonSchema, Node, Rule, Type};
use crate::{InvalidSchema, shown};

/// Keywords that say nothing about a value, and those that definitions stand in.
const ANNOTATIONS: [&str; 17] = [
    "$schema",
    "$id",
    "$comment",
    "$defs",
    "definitions",
    "title",
    "description",
    "default",
    "example",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "contentMediaType",
    "contentEncoding",
    "contentSchema",
    "discriminator",
];
/// Keywords that another one reads.
const COMPANIONS: [&str; 4] = ["then", "else", "additionalItems", "prefixItems"];

struct Compiler<'a> {
    root: &'a Value,
    nodes: Vec<Vec<Rule>>,
    /// The place of each node in the schema.
    places: Vec<Vec<String>>,
    /// Nodes of definitions by their pointer.
    known: HashMap<String, Node>,
    /// The position of the compiler.
    place: Vec<String>,
}

impl JsonSchema {
    pub fn new(schema: &Value) -> Result<Self, InvalidSchema> {
        let known = HashMap::from([(String::new(), 0)]);
        let mut compiler = Compiler {
            root: schema,
            nodes: Vec::new(),
            places: Vec::new(),
            known,
            place: Vec::new(),
        };
        compiler.node(schema)?;
        if let Some(node) = endless(&compiler.nodes) {
            let message = "it refers to itself without looking into the value, so that no check of it would end";
            return Err(InvalidSchema {
                place: compiler.places.swap_remove(node),
                message: message.to_owned(),
            });
        }
        Ok(Self { nodes: compiler.nodes })
    }
}

/// Returns a node that checks a value by checking the same value against itself.
fn endless(nodes: &[Vec<Rule>]) -> Option<Node> {
    let next: Vec<Vec<Node>> = nodes
        .iter()
        .map(|rules| rules.iter().flat_map(Rule::of_the_same_value).collect())
        .collect();
    let mut before = vec![Vec::new(); nodes.len()];
    for (node, next) in next.iter().enumerate() {
        next.iter().for_each(|next| before[*next].push(node));
    }
    // How many of the next ones may not end.
    let mut open: Vec<usize> = next.iter().map(Vec::len).collect();
    let mut ending: Vec<Node> = (0..nodes.len()).filter(|node| open[*node] == 0).collect();
    while let Some(node) = ending.pop() {
        for &node in &before[node] {
            open[node] -= 1;
            if open[node] == 0 {
                ending.push(node);
            }
        }
    }
    // From a node that does not end, this way leads into the circle.
    let first = open.iter().position(|open| *open > 0)?;
    (0..nodes.len())
        .try_fold(first, |node, _| next[node].iter().copied().find(|next| open[*next] > 0))
}

impl Rule {
    /// Returns the nodes against which it checks the value itself, and not a part of it.
    fn of_the_same_value(&self) -> Vec<Node> {
        match self {
            Self::All(nodes) | Self::Any(nodes) | Self::ExactlyOne(nodes) => nodes.clone(),
            Self::Not(node) => vec![*node],
            Self::If { condition, then, otherwise } => {
                [Some(*condition), *then, *otherwise].into_iter().flatten().collect()
            }
            _ => Vec::new(),
        }
    }
}

type Compiled<T> = Result<T, InvalidSchema>;

impl Compiler<'_> {
    fn invalid<T>(&self, message: impl Into<String>) -> Compiled<T> {
        Err(InvalidSchema { place: self.place.clone(), message: message.into() })
    }

    fn expected<T>(&self, what: &str, value: &Value) -> Compiled<T> {
        self.invalid(format!("expected {what}, got {}", shown(value)))
    }

    /// Compiles a part of the schema below `key`.
    fn below<T>(
        &mut self,
        key: &str,
        compile: impl FnOnce(&mut Self) -> Compiled<T>,
    ) -> Compiled<T> {
        self.place.push(key.to_owned());
        let compiled = compile(self)?;
        self.place.pop();
        Ok(compiled)
    }

    /// Adds a schema to the nodes.
    fn node(&mut self, schema: &Value) -> Compiled<Node> {
        let node = self.nodes.len();
        self.nodes.push(Vec::new());
        self.places.push(self.place.clone());
        let rules = match schema {
            Value::Bool(true) => Vec::new(),
            Value::Bool(false) => vec![Rule::Nothing],
            Value::Object(keywords) => self.rules(keywords)?,
            other => return self.expected("a schema (an object)", other),
        };
        self.nodes[node] = rules;
        Ok(node)
    }

    fn nodes_of(&mut self, schemas: &Value) -> Compiled<Vec<Node>> {
        let Value::Array(schemas) = schemas else {
            return self.expected("a list of schemas", schemas);
        };
        let schemas = schemas.iter().enumerate();
        schemas.map(|(at, schema)| self.below(&at.to_string(), |this| this.node(schema))).collect()
    }

    fn named_nodes(&mut self, schemas: &Value) -> Compiled<Vec<(String, Node)>> {
        let Value::Object(schemas) = schemas else {
            return self.expected("schemas by name", schemas);
        };
        let node = |(name, schema): (&String, &Value)| {
            Ok((name.clone(), self.below(name, |this| this.node(schema))?))
        };
        schemas.iter().map(node).collect()
    }

    fn rules(&mut self, keywords: &Map<String, Value>) -> Compiled<Vec<Rule>> {
        let mut rules = Vec::new();
        // The plainest reason first.
        let is_first = |keyword: &&String| ["type", "required"].contains(&keyword.as_str());
        let in_order = keywords
            .keys()
            .filter(is_first)
            .chain(keywords.keys().filter(|keyword| !is_first(keyword)));
        for keyword in in_order {
            let value = &keywords[keyword];
            rules.extend(self.below(keyword, |this| this.rule(keyword, value, keywords))?);
        }
        Ok(rules)
    }

    fn rule(
        &mut self,
        keyword: &str,
        value: &Value,
        all: &Map<String, Value>,
    ) -> Compiled<Option<Rule>> {
        if let Some(bound) = BOUNDS.iter().find(|bound| bound.keyword == keyword) {
            return Ok(Some(Rule::Bound(self.number(value)?, bound)));
        }
        Ok(Some(match keyword {
            "type" => Rule::Types(self.types(value)?),
            "enum" => match value {
                Value::Array(values) if !values.is_empty() => Rule::OneOf(values.clone()),
                other => return self.expected("a list of values", other),
            },
            "const" => Rule::OneOf(vec![value.clone()]),
            "multipleOf" => match self.number(value)? {
                unit if unit.as_f64().is_some_and(|unit| unit > 0.0) => Rule::MultipleOf(unit),
                _ => return self.expected("a number above 0", value),
            },
            "minLength" => {
                Rule::Length { of: Type::String, min: self.count(value)?, max: usize::MAX }
            }
            "maxLength" => Rule::Length { of: Type::String, min: 0, max: self.count(value)? },
            "minItems" => {
                Rule::Length { of: Type::Array, min: self.count(value)?, max: usize::MAX }
            }
            "maxItems" => Rule::Length { of: Type::Array, min: 0, max: self.count(value)? },
            "minProperties" => {
                Rule::Length { of: Type::Object, min: self.count(value)?, max: usize::MAX }
            }
            "maxProperties" => Rule::Length { of: Type::Object, min: 0, max: self.count(value)? },
            "pattern" => match value {
                Value::String(pattern) => Rule::Pattern(self.pattern(pattern)?),
                other => return self.expected("a regular expression", other),
            },
            "format" => match value.as_str() {
                Some("date") => Rule::Format(Format::Date),
                Some("date-time") => Rule::Format(Format::DateTime),
                // An annotation, unless a validator knows it.
                Some(_) => return Ok(None),
                None => return self.expected("the name of a format", value),
            },
            "required" => Rule::Required(self.names(value)?),
            "properties" | "patternProperties" | "additionalProperties" => {
                // One rule for those that there are.
                let keys = ["properties", "patternProperties", "additionalProperties"];
                if keys.iter().find(|key| all.contains_key(**key)) != Some(&keyword) {
                    return Ok(None);
                }
                self.place.pop();
                let rule = self.properties(keys.map(|key| all.get(key)))?;
                self.place.push(keyword.to_owned());
                rule
            }
            "propertyNames" => Rule::Names(self.node(value)?),
            "items" => match value {
                Value::Array(_) => {
                    let first = self.nodes_of(value)?;
                    Rule::Items { first, rest: self.optional("additionalItems", all)? }
                }
                _ => {
                    let rest = Some(self.node(value)?);
                    let first =
                        all.get("prefixItems").map(|first| self.nodes_of(first)).transpose()?;
                    Rule::Items { first: first.unwrap_or_default(), rest }
                }
            },
            "prefixItems" if !all.contains_key("items") => {
                Rule::Items { first: self.nodes_of(value)?, rest: None }
            }
            "uniqueItems" => match value {
                Value::Bool(true) => Rule::Unique,
                Value::Bool(false) => return Ok(None),
                other => return self.expected("true or false", other),
            },
            "allOf" => Rule::All(self.nodes_of(value)?),
            "anyOf" => Rule::Any(self.nodes_of(value)?),
            "oneOf" => Rule::ExactlyOne(self.nodes_of(value)?),
            "not" => Rule::Not(self.node(value)?),
            "if" => {
                let condition = self.node(value)?;
                Rule::If {
                    condition,
                    then: self.optional("then", all)?,
                    otherwise: self.optional("else", all)?,
                }
            }
            "$ref" => Rule::All(vec![self.reference(value)?]),
            _ if COMPANIONS.contains(&keyword)
                || ANNOTATIONS.contains(&keyword)
                || keyword.starts_with("x-") =>
            {
                return Ok(None);
            }
            _ => {
                return self
                    .invalid("not a keyword of JSON Schema, or one that Gristmill does not check");
            }
        }))
    }

    fn optional(&mut self, keyword: &str, all: &Map<String, Value>) -> Compiled<Option<Node>> {
        all.get(keyword).map(|schema| self.node(schema)).transpose()
    }

    fn properties(&mut self, [named, patterns, others]: [Option<&Value>; 3]) -> Compiled<Rule> {
        let named = named
            .map(|named| self.below("properties", |this| this.named_nodes(named)))
            .transpose()?;
        let by_pattern =
            patterns.map(|found| self.below("patternProperties", |this| this.named_nodes(found)));
        let mut patterns = Vec::new();
        for (pattern, node) in by_pattern.transpose()?.unwrap_or_default() {
            let pattern = self.below("patternProperties", |this| {
                this.below(&pattern, |this| this.pattern(&pattern))
            })?;
            patterns.push((pattern, node));
        }
        let others = others
            .map(|others| self.below("additionalProperties", |this| this.node(others)))
            .transpose()?;
        Ok(Rule::Properties { named: named.unwrap_or_default(), patterns, others })
    }

    fn reference(&mut self, value: &Value) -> Compiled<Node> {
        let pointer = value.as_str().and_then(|text| text.strip_prefix('#'));
        let Some(pointer) =
            pointer.filter(|pointer| pointer.is_empty() || pointer.starts_with('/'))
        else {
            return self.expected("a part of this schema, such as \"#/$defs/name\"", value);
        };
        if let Some(node) = self.known.get(pointer) {
            return Ok(*node);
        }
        let Some(schema) = self.root.pointer(pointer) else {
            return self.invalid(format!("the schema has no {}", shown(value)));
        };
        // Known before its own references are followed.
        self.known.insert(pointer.to_owned(), self.nodes.len());
        let here = std::mem::replace(
            &mut self.place,
            pointer.split('/').skip(1).map(str::to_owned).collect(),
        );
        let node = self.node(schema)?;
        self.place = here;
        Ok(node)
    }

    fn types(&self, value: &Value) -> Compiled<Vec<Type>> {
        let words = match value {
            Value::Array(words) if !words.is_empty() => &words[..],
            word => std::slice::from_ref(word),
        };
        let known =
            |word: &Value| Type::ALL.iter().find(|(_, known)| word == known).map(|(kind, _)| *kind);
        match words.iter().map(known).collect() {
            Some(types) => Ok(types),
            None => self.expected(
                &format!("{}, or a list of them", Type::ALL.map(|(_, word)| word).join(", ")),
                value,
            ),
        }
    }

    fn names(&self, value: &Value) -> Compiled<Vec<String>> {
        let names = value
            .as_array()
            .map(|names| names.iter().map(|name| name.as_str().map(str::to_owned)).collect());
        names.flatten().map_or_else(|| self.expected("a list of names", value), Ok)
    }

    fn number(&self, value: &Value) -> Compiled<Number> {
        value.as_number().cloned().map_or_else(|| self.expected("a number", value), Ok)
    }

    fn count(&self, value: &Value) -> Compiled<usize> {
        let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
        count.map_or_else(|| self.expected("a whole number from 0", value), Ok)
    }

    fn pattern(&self, pattern: &str) -> Compiled<Regex> {
        Regex::new(pattern)
            .or_else(|error| self.invalid(format!("not a regular expression: {error}")))
    }
}
