//! JSON Schemas, checked by the crate `jsonschema`. As the standard requires, the crate ignores unknown keywords. This
//! module rejects them, so that a misspelt one is not ignored without notice.

use jsonschema::error::{TypeKind, ValidationErrorKind as Kind};
use jsonschema::paths::LocationSegment;
use jsonschema::{JsonTypeSet, ValidationError, Validator};
use serde_json::Value;

use crate::{InvalidSchema, is_day, is_instant, shown};

/// Keywords with one schema, or with a list of schemas.
const SCHEMAS: &str = "additionalItems additionalProperties allOf anyOf contains contentSchema \
     else if items not oneOf prefixItems propertyNames then unevaluatedItems unevaluatedProperties";
/// Keywords with schemas by name.
const NAMED_SCHEMAS: &str = "$defs definitions dependentSchemas patternProperties properties";
/// All other keywords, including those of OpenAPI that do not restrict a value.
const OTHERS: &str = "$anchor $comment $dynamicAnchor $dynamicRef $id $ref $schema $vocabulary \
     const contentEncoding contentMediaType default dependencies dependentRequired deprecated \
     description discriminator enum example examples exclusiveMaximum exclusiveMinimum format \
     maxContains maxItems maxLength maxProperties maximum minContains minItems minLength \
     minProperties minimum multipleOf pattern readOnly required title type uniqueItems writeOnly";

/// Prepares a schema. The formats `date` and `date-time` accept what the reducer reads for columns of Parquet.
pub(crate) fn validator(schema: &Value) -> Result<Validator, InvalidSchema> {
    if let Some(mut place) = unknown_keyword(schema) {
        place.reverse();
        let message = "not a keyword of JSON Schema".to_owned();
        let keywords = [SCHEMAS, NAMED_SCHEMAS, OTHERS];
        let keywords = keywords.iter().flat_map(|words| words.split_whitespace()).collect();
        return Err(InvalidSchema { place, message, keywords });
    }
    let options = jsonschema::options()
        .should_validate_formats(true)
        .with_format("date", is_day)
        .with_format("date-time", is_instant);
    options.build(schema).map_err(|error| InvalidSchema {
        place: error.instance_path().iter().map(|segment| segment.to_string()).collect(),
        message: reason(nearest(&error)),
        keywords: Vec::new(),
    })
}

/// Returns the place of an unknown keyword, innermost part first.
fn unknown_keyword(schema: &Value) -> Option<Vec<String>> {
    schema.as_object()?.iter().find_map(|(keyword, value)| {
        let is_one_of = |words: &str| words.split_whitespace().any(|word| word == keyword);
        let below = |name: String, schema: &Value| {
            let mut place = unknown_keyword(schema)?;
            place.push(name);
            Some(place)
        };
        let mut place = match value {
            Value::Array(schemas) if is_one_of(SCHEMAS) => {
                let mut schemas = schemas.iter().enumerate();
                schemas.find_map(|(at, schema)| below(at.to_string(), schema))
            }
            schema if is_one_of(SCHEMAS) => unknown_keyword(schema),
            Value::Object(schemas) if is_one_of(NAMED_SCHEMAS) => {
                schemas.iter().find_map(|(name, schema)| below(name.clone(), schema))
            }
            _ if is_one_of(NAMED_SCHEMAS) || is_one_of(OTHERS) || keyword.starts_with("x-") => None,
            _ => Some(Vec::new()),
        }?;
        place.push(keyword.clone());
        Some(place)
    })
}

/// Returns why a value does not fit: its field as people write it (`lines[0].price`), and the reason.
pub(crate) fn misfit(schema: &Validator, value: &Value) -> Option<String> {
    let error = schema.validate(value).err()?;
    let error = nearest(&error);
    let mut field = String::new();
    for segment in error.instance_path() {
        match segment {
            LocationSegment::Index(at) => field += &format!("[{at}]"),
            LocationSegment::Property(name) if field.is_empty() => field += &name,
            LocationSegment::Property(name) => field += &format!(".{name}"),
        }
    }
    let reason = reason(error);
    Some(if field.is_empty() { reason } else { format!("{field}: {reason}") })
}

/// Returns the reason of an error, with all allowed values where the text of the crate omits some.
fn reason(error: &ValidationError<'_>) -> String {
    match error.kind() {
        Kind::Enum { options } => format!("{} is not one of {options}", shown(error.instance())),
        Kind::Referencing(fault) => format!(
            "{fault}; `$ref` may name a part of this schema, such as \"#/$defs/name\", and no other \
             document"
        ),
        Kind::AnyOf { context } | Kind::OneOfNotValid { context } => {
            let first = context.iter().filter_map(|errors| errors.first());
            let types: Vec<String> =
                first.filter_map(types).flatten().map(|kind| format!("\"{kind}\"")).collect();
            match types.is_empty() {
                true => error.to_string(),
                false => {
                    format!("{} is not of types {}", shown(error.instance()), types.join(", "))
                }
            }
        }
        _ => error.to_string(),
    }
}

fn types(error: &ValidationError<'_>) -> Option<JsonTypeSet> {
    match error.kind() {
        Kind::Type { kind: TypeKind::Single(kind) } => Some(JsonTypeSet::empty().insert(*kind)),
        Kind::Type { kind: TypeKind::Multiple(kinds) } => Some(*kinds),
        _ => None,
    }
}

/// Returns the error of the first alternative that has the type of the value, instead of the error that it fits none.
fn nearest<'a, 'v>(error: &'a ValidationError<'v>) -> &'a ValidationError<'v>
where
    'static: 'v,
{
    let (Kind::AnyOf { context } | Kind::OneOfNotValid { context }) = error.kind() else {
        return error;
    };
    let has_type = |inner: &&ValidationError<'_>| {
        !matches!(inner.kind(), Kind::Type { .. }) || inner.instance_path() != error.instance_path()
    };
    context
        .iter()
        .filter_map(|errors| errors.first())
        .find(has_type)
        .map_or(error, |inner| nearest(inner))
}
