//! The kinds of values that a column has in all mini-batches, and the one type that holds them without loss.
//!
//! [`Observed`] is a summary: it can be taken of each array, and summaries can be joined in any order, so the type does not
//! depend on how rows are divided into mini-batches. A type tells most of it. Where only the values can decide, such as
//! whether floating-point numbers are whole, [`Observed::is_open`] says so, and the arrays are read.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::{cast, max, min};
use arrow::datatypes::{
    self as types, ArrowPrimitiveType, DataType, Field, FieldRef, Fields, TimeUnit,
};
use protocol::{ABSENT, EXTENSION_NAME, JSON_EXTENSION, UUID_EXTENSION};

/// The zone of columns with several zones.
const UTC: &str = "UTC";
/// Integers up to this magnitude are exact as 64-bit floating-point numbers.
const EXACT_IN_FLOAT: i128 = 1 << 53;
/// Digits that the widest decimal holds.
const DIGITS_MAX: u8 = 76;
/// A record with more keys is a map of names rather than a record, and becomes JSON text.
const KEYS_MAX: usize = 1_000;

/// A place in the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub mini_batch: u64,
    /// The row of the result of this mini-batch.
    pub row: u64,
}

/// The values of a column, by kind.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    kinds: Vec<Seen>,
    /// Whether values came as categories, and whether others did not.
    categories: bool,
    plain: bool,
}

/// The values of one kind.
#[derive(Clone, Debug)]
struct Seen {
    kind: Kind,
    /// 0 if only the type has been looked at, or if every value is missing.
    values: u64,
    first: Option<Place>,
}

/// Kinds of values. Two of one kind always have a common type, unless their range is too large.
#[derive(Clone, Debug)]
enum Kind {
    Boolean,
    /// The widest type of each sign, in bytes, and the range.
    Integer {
        signed: u8,
        unsigned: u8,
        range: Range,
    },
    /// The widest type in bytes, whether every number is a whole one of 64 bits, and their range.
    Float {
        width: u8,
        is_whole: bool,
        range: Range,
    },
    /// Digits before and after the point, and the types of all.
    Decimal {
        whole: u8,
        scale: u8,
        types: Types,
    },
    Text {
        is_large: bool,
    },
    Json,
    Uuid,
    Binary {
        types: Types,
    },
    Date {
        types: Types,
        range: Range,
    },
    Time {
        types: Types,
        unit: TimeUnit,
    },
    /// Without a zone.
    Timestamp {
        units: BTreeSet<TimeUnit>,
        range: Range,
    },
    Instant {
        units: BTreeSet<TimeUnit>,
        range: Range,
        zones: BTreeSet<Arc<str>>,
    },
    Duration {
        units: BTreeSet<TimeUnit>,
        range: Range,
    },
    List {
        item: Box<Observed>,
        is_large: bool,
        fixed: Option<i32>,
        name: Arc<str>,
    },
    Record {
        fields: Vec<(String, Observed)>,
    },
    Map {
        entries: FieldRef,
        key: Box<Observed>,
        value: Box<Observed>,
        is_sorted: bool,
    },
}

/// The different types of a kind, of which there are few.
type Types = Vec<DataType>;

/// The smallest and the largest value; in nanoseconds for times. Empty: `None`.
type Range = Option<(i128, i128)>;

/// The columns whose values have no common type.
#[derive(Debug, Default)]
pub(super) struct Conflicts {
    pub found: Vec<Conflict>,
    /// Whether such columns are JSON, which keeps each value as it is; otherwise they are text.
    pub are_json: bool,
}

/// A column whose values have no common type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Conflict {
    /// Its name, and the way to a part of its values, such as `box[].label`.
    pub column: String,
    /// The kinds of its values, with their numbers and the place of the first.
    pub kinds: Vec<(String, u64, Option<Place>)>,
}

impl Observed {
    /// Adds the values of an array, the first of which is in this row of a result.
    pub fn observe(&mut self, array: &ArrayRef, field: &Field, first: Place) {
        let Some(array) = &without_encoding(array) else { return };
        if let DataType::Dictionary(_, values) = array.data_type() {
            // Categories of JSON or of records do not exist.
            let plain = cast(array, values).unwrap_or_else(|_| array.clone());
            self.categories = true;
            let was_plain = self.plain;
            self.observe(&plain, &Field::new(field.name(), (**values).clone(), true), first);
            self.plain = was_plain;
            return;
        }
        if let DataType::Union(fields, _) = array.data_type() {
            let union = array.as_union();
            for (id, part) in fields.iter().filter(|(_, part)| part.name() != ABSENT) {
                let row = union.type_ids().iter().position(|other| *other == id).unwrap_or(0);
                let first = Place { row: first.row + row as u64, ..first };
                self.observe(union.child(id), part, first);
            }
            return;
        }
        let Some(kind) = kind_of(array, field, first) else { return };
        let values = (array.len() - array.logical_null_count()) as u64;
        self.plain |= values > 0 || array.is_empty();
        let row = (0..array.len()).find(|row| !array.is_null(*row));
        let first = row.map(|row| Place { row: first.row + row as u64, ..first });
        self.add(Seen { kind, values, first: first.filter(|_| values > 0) });
    }

    /// Adds the facts that the type of a column alone shows.
    pub fn observe_type(&mut self, field: &Field) {
        let empty = arrow::array::new_empty_array(field.data_type());
        self.observe(&empty, field, Place { mini_batch: 0, row: 0 });
    }

    fn add(&mut self, seen: Seen) {
        let Some(known) = self.kinds.iter_mut().find(|known| known.kind.is_like(&seen.kind)) else {
            self.kinds.push(seen);
            return;
        };
        known.kind.join(seen.kind);
        known.values += seen.values;
        known.first = match (known.first, seen.first) {
            (Some(left), Some(right)) => Some(left.min(right)),
            (left, right) => left.or(right),
        };
    }

    fn join(&mut self, other: Self) {
        other.kinds.into_iter().for_each(|seen| self.add(seen));
        self.categories |= other.categories;
        self.plain |= other.plain;
    }

    /// Returns whether the types alone do not decide, so that the values must be observed.
    pub fn is_open(&self) -> bool {
        self.kinds.len() > 1 || self.categories || self.kinds.iter().any(|seen| seen.kind.is_open())
    }

    /// Returns whether the values are categories, all of them.
    pub fn has_categories(&self) -> bool {
        self.categories && !self.plain && self.kinds.len() == 1
    }

    /// Returns the field that holds every value. Adds a conflict for each part whose values become text.
    pub fn field(&self, name: &str, path: &str, conflicts: &mut Conflicts) -> Field {
        // A column without values may have any type.
        let has_values = self.kinds.iter().any(|seen| seen.values > 0);
        let mut kinds: Vec<&Seen> =
            self.kinds.iter().filter(|seen| !has_values || seen.values > 0).collect();
        if kinds.iter().any(|seen| matches!(seen.kind, Kind::Map { .. })) {
            // Lists without items are maps without pairs.
            kinds.retain(
                |seen| !matches!(&seen.kind, Kind::List { item, .. } if item.kinds.is_empty()),
            );
        }
        let data_type = match &*kinds {
            [] => Some(DataType::Utf8),
            [only] => match only.kind.field(name, path, conflicts) {
                Some(field) => {
                    let categories = self.has_categories() && !field.data_type().is_nested();
                    return match categories {
                        true => {
                            let values = Box::new(field.data_type().clone());
                            field.with_data_type(DataType::Dictionary(
                                Box::new(DataType::Int32),
                                values,
                            ))
                        }
                        false => field,
                    };
                }
                None => None,
            },
            several => common(several),
        };
        if let Some(data_type) = data_type {
            return Field::new(name, data_type, true);
        }
        let is_json = |seen: &&Seen| {
            matches!(
                seen.kind,
                Kind::Json | Kind::Record { .. } | Kind::List { .. } | Kind::Map { .. }
            )
        };
        if kinds.iter().all(is_json) && kinds.iter().any(|seen| matches!(seen.kind, Kind::Json)) {
            return json_field(name);
        }
        if !(kinds.len() == 1
            && matches!(&kinds[0].kind, Kind::Record { fields } if fields.is_empty()))
        {
            let kinds =
                kinds.iter().map(|seen| (seen.kind.word(), seen.values, seen.first)).collect();
            conflicts.found.push(Conflict { column: path.to_owned(), kinds });
        }
        if conflicts.are_json { json_field(name) } else { Field::new(name, DataType::Utf8, true) }
    }
}

/// Returns the metadata of a field of an extension type.
fn extension(name: &str) -> HashMap<String, String> {
    HashMap::from([(EXTENSION_NAME.to_owned(), name.to_owned())])
}

/// Returns the field of a column of texts that are JSON.
pub(super) fn json_field(name: &str) -> Field {
    Field::new(name, DataType::Utf8, true).with_metadata(extension(JSON_EXTENSION))
}

/// Returns an array without an encoding that says nothing about its values, and intervals of months, days and
/// nanoseconds, which no format of a file has, as text; `None` if it has no values at all.
pub(super) fn without_encoding(array: &ArrayRef) -> Option<ArrayRef> {
    let plain = match array.data_type() {
        DataType::Null => return None,
        DataType::Utf8View => DataType::LargeUtf8,
        DataType::BinaryView => DataType::LargeBinary,
        DataType::ListView(item) => DataType::List(item.clone()),
        DataType::LargeListView(item) => DataType::LargeList(item.clone()),
        DataType::RunEndEncoded(_, values) => values.data_type().clone(),
        DataType::Interval(_) => DataType::Utf8,
        _ => return Some(array.clone()),
    };
    // Arrow converts each of these.
    Some(cast(array, &plain).unwrap_or_else(|_| array.clone()))
}

/// Returns the kind of the values of an array, or `None` if its type has no values.
fn kind_of(array: &ArrayRef, field: &Field, first: Place) -> Option<Kind> {
    use DataType::{
        Binary, Boolean, Date32, Date64, Decimal32, Decimal64, Decimal128, Decimal256, Duration,
        FixedSizeBinary, FixedSizeList, Float16, Float32, Float64, Int8, Int16, Int32, Int64,
        LargeBinary, LargeList, LargeUtf8, List, Map, Struct, Time32, Time64, Timestamp, UInt8,
        UInt16, UInt32, UInt64, Utf8,
    };
    let signed = |width, range| Kind::Integer { signed: width, unsigned: 0, range };
    let unsigned = |width, range| Kind::Integer { signed: 0, unsigned: width, range };
    let extension = field.metadata().get(EXTENSION_NAME).map(String::as_str);
    let only = |data_type: &DataType| vec![data_type.clone()];
    let data_type = array.data_type();
    Some(match data_type {
        Boolean => Kind::Boolean,
        Int8 => signed(1, range::<types::Int8Type>(array)),
        Int16 => signed(2, range::<types::Int16Type>(array)),
        Int32 => signed(4, range::<types::Int32Type>(array)),
        Int64 => signed(8, range::<types::Int64Type>(array)),
        UInt8 => unsigned(1, range::<types::UInt8Type>(array)),
        UInt16 => unsigned(2, range::<types::UInt16Type>(array)),
        UInt32 => unsigned(4, range::<types::UInt32Type>(array)),
        UInt64 => unsigned(8, range::<types::UInt64Type>(array)),
        Float16 | Float32 | Float64 => {
            let width = data_type.primitive_width()? as u8;
            let (is_whole, range) = whole_numbers(array);
            Kind::Float { width, is_whole, range }
        }
        Decimal32(precision, scale)
        | Decimal64(precision, scale)
        | Decimal128(precision, scale)
        | Decimal256(precision, scale) => {
            let whole = (i16::from(*precision) - i16::from(*scale)).clamp(0, 255) as u8;
            Kind::Decimal { whole, scale: (*scale).max(0) as u8, types: only(data_type) }
        }
        Utf8 | LargeUtf8 if extension == Some(JSON_EXTENSION) => Kind::Json,
        Utf8 => Kind::Text { is_large: false },
        LargeUtf8 => Kind::Text { is_large: true },
        FixedSizeBinary(16) if extension == Some(UUID_EXTENSION) => Kind::Uuid,
        Binary | LargeBinary | FixedSizeBinary(_) => Kind::Binary { types: only(data_type) },
        Date32 | Date64 => Kind::Date { types: only(data_type), range: days(array) },
        Time32(unit) | Time64(unit) => Kind::Time { types: only(data_type), unit: *unit },
        Timestamp(unit, zone) => {
            let (units, range) = (BTreeSet::from([*unit]), nanoseconds(array, *unit));
            match zone {
                None => Kind::Timestamp { units, range },
                Some(zone) => Kind::Instant { units, range, zones: BTreeSet::from([zone.clone()]) },
            }
        }
        Duration(unit) => {
            Kind::Duration { units: BTreeSet::from([*unit]), range: nanoseconds(array, *unit) }
        }
        List(item) | LargeList(item) | FixedSizeList(item, _) => {
            let (values, fixed) = match data_type {
                List(_) => (array.as_list::<i32>().values().clone(), None),
                LargeList(_) => (array.as_list::<i64>().values().clone(), None),
                _ => {
                    let lists = array.as_fixed_size_list();
                    (lists.values().clone(), Some(lists.value_length()))
                }
            };
            let mut items = Observed::default();
            // Where a value of a list is in its column cannot be told from the values alone.
            items.observe(&values, item, first);
            let is_large = matches!(data_type, LargeList(_));
            Kind::List { item: Box::new(items), is_large, fixed, name: item.name().as_str().into() }
        }
        Struct(fields) => {
            let record = array.as_struct();
            let parts = fields.iter().zip(record.columns()).map(|(field, column)| {
                let mut part = Observed::default();
                let valid = match record.nulls() {
                    // A part of a missing record is no value.
                    Some(nulls) => masked(column, nulls),
                    None => column.clone(),
                };
                part.observe(&valid, field, first);
                (field.name().clone(), part)
            });
            Kind::Record { fields: parts.collect() }
        }
        Map(entries, is_sorted) => {
            let map = array.as_map();
            let Struct(parts) = entries.data_type() else { return None };
            let (mut key, mut value) = (Observed::default(), Observed::default());
            key.observe(map.keys(), &parts[0], first);
            value.observe(map.values(), &parts[1], first);
            Kind::Map {
                entries: entries.clone(),
                key: Box::new(key),
                value: Box::new(value),
                is_sorted: *is_sorted,
            }
        }
        _ => return None,
    })
}

/// Returns the array with null where the record that it is a part of is missing.
fn masked(column: &ArrayRef, nulls: &arrow::buffer::NullBuffer) -> ArrayRef {
    if matches!(
        column.data_type(),
        DataType::Union(..) | DataType::Null | DataType::RunEndEncoded(..)
    ) {
        return column.clone();
    }
    let joined = arrow::buffer::NullBuffer::union(column.nulls(), Some(nulls));
    let data = column.to_data().into_builder().nulls(joined).build();
    data.map_or_else(|_| column.clone(), arrow::array::make_array)
}

fn range<T: ArrowPrimitiveType>(array: &ArrayRef) -> Range
where
    T::Native: Into<i128>,
{
    let array = array.as_primitive::<T>();
    Some((min(array)?.into(), max(array)?.into()))
}

/// Returns the range in nanoseconds of numbers that count a unit of time.
fn nanoseconds(array: &ArrayRef, unit: TimeUnit) -> Range {
    let numbers = cast(array, &DataType::Int64).ok()?;
    let (smallest, largest) = range::<types::Int64Type>(&numbers)?;
    let factor = i128::from(1_000_000_000 / per_second(unit));
    Some((smallest * factor, largest * factor))
}

/// Returns the range of days in nanoseconds.
fn days(array: &ArrayRef) -> Range {
    let days =
        cast(array, &DataType::Date32).and_then(|days| cast(&days, &DataType::Int32)).ok()?;
    let (first, last) = range::<types::Int32Type>(&days)?;
    Some((first * 86_400_000_000_000, last * 86_400_000_000_000))
}

/// Returns how many of a unit of time a second has.
pub(super) fn per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

/// Returns whether every number is a whole one that 64 bits hold, and the range of such numbers.
fn whole_numbers(array: &ArrayRef) -> (bool, Range) {
    let Ok(numbers) = cast(array, &DataType::Float64) else { return (false, None) };
    let mut range: Option<(i128, i128)> = None;
    for number in numbers.as_primitive::<types::Float64Type>().iter().flatten() {
        // The comparison excludes NaN. No integer is a negative zero.
        let is_negative_zero = number == 0.0 && number.is_sign_negative();
        if is_negative_zero
            || number.fract() != 0.0
            || !(number >= i64::MIN as f64 && number < i64::MAX as f64)
        {
            return (false, None);
        }
        let number = number as i128;
        range = Some(
            range.map_or((number, number), |(least, most)| (least.min(number), most.max(number))),
        );
    }
    (true, range)
}

fn widen(range: &mut Range, other: Range) {
    *range = match (*range, other) {
        (Some(left), Some(right)) => Some((left.0.min(right.0), left.1.max(right.1))),
        (left, right) => left.or(right),
    };
}

fn add_types(types: &mut Types, other: Types) {
    for data_type in other {
        if !types.contains(&data_type) {
            types.push(data_type);
        }
    }
}

impl Kind {
    fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    /// Adds the values of the same kind.
    fn join(&mut self, other: Self) {
        match (self, other) {
            (
                Self::Integer { signed, unsigned, range },
                Self::Integer { signed: s, unsigned: u, range: r },
            ) => {
                (*signed, *unsigned) = ((*signed).max(s), (*unsigned).max(u));
                widen(range, r);
            }
            (
                Self::Float { width, is_whole, range },
                Self::Float { width: w, is_whole: i, range: r },
            ) => {
                (*width, *is_whole) = ((*width).max(w), *is_whole && i);
                widen(range, r);
            }
            (
                Self::Decimal { whole, scale, types },
                Self::Decimal { whole: w, scale: s, types: t },
            ) => {
                (*whole, *scale) = ((*whole).max(w), (*scale).max(s));
                add_types(types, t);
            }
            (Self::Text { is_large }, Self::Text { is_large: l }) => *is_large |= l,
            (Self::Binary { types }, Self::Binary { types: t }) => add_types(types, t),
            (Self::Date { types, range }, Self::Date { types: t, range: r }) => {
                widen(range, r);
                add_types(types, t);
            }
            (Self::Time { types, unit }, Self::Time { types: t, unit: u }) => {
                *unit = (*unit).max(u);
                add_types(types, t);
            }
            (Self::Timestamp { units, range }, Self::Timestamp { units: u, range: r })
            | (Self::Duration { units, range }, Self::Duration { units: u, range: r }) => {
                units.extend(u);
                widen(range, r);
            }
            (
                Self::Instant { units, range, zones },
                Self::Instant { units: u, range: r, zones: z },
            ) => {
                units.extend(u);
                zones.extend(z);
                widen(range, r);
            }
            (
                Self::List { item, is_large, fixed, .. },
                Self::List { item: other, is_large: l, fixed: f, .. },
            ) => {
                item.join(*other);
                *is_large |= l;
                *fixed = fixed.filter(|_| *fixed == f);
            }
            (Self::Record { fields }, Self::Record { fields: others }) => {
                for (position, (name, part)) in others.into_iter().enumerate() {
                    // Mostly, records have the same keys in the same order.
                    let known = match fields.get(position).is_some_and(|(known, _)| *known == name)
                    {
                        true => Some(position),
                        false => fields.iter().position(|(known, _)| *known == name),
                    };
                    match known {
                        Some(known) => fields[known].1.join(part),
                        None => fields.push((name, part)),
                    }
                }
            }
            (
                Self::Map { key, value, is_sorted, .. },
                Self::Map { key: k, value: v, is_sorted: s, .. },
            ) => {
                key.join(*k);
                value.join(*v);
                *is_sorted &= s;
            }
            _ => {}
        }
    }

    fn is_open(&self) -> bool {
        match self {
            Self::Integer { signed, unsigned, .. } => *signed > 0 && *unsigned > 0,
            Self::Timestamp { units, .. }
            | Self::Instant { units, .. }
            | Self::Duration { units, .. } => units.len() > 1,
            Self::List { item, .. } => item.is_open(),
            Self::Record { fields } => fields.iter().any(|(_, part)| part.is_open()),
            Self::Map { key, value, .. } => key.is_open() || value.is_open(),
            _ => false,
        }
    }

    /// Returns the field that holds the values of this kind, or `None` if no type does.
    fn field(&self, name: &str, path: &str, conflicts: &mut Conflicts) -> Option<Field> {
        let field = |data_type| Some(Field::new(name, data_type, true));
        match self {
            Self::Boolean => field(DataType::Boolean),
            Self::Integer { signed, unsigned, range } => field(integer(*signed, *unsigned, *range)),
            Self::Float { width: 2, .. } => field(DataType::Float16),
            Self::Float { width: 4, .. } => field(DataType::Float32),
            Self::Float { .. } => field(DataType::Float64),
            Self::Decimal { types, .. } if types.len() == 1 => field(types[0].clone()),
            Self::Decimal { whole, scale, .. } => field(decimal(*whole, *scale)?),
            Self::Text { is_large } => {
                field(if *is_large { DataType::LargeUtf8 } else { DataType::Utf8 })
            }
            Self::Json => Some(json_field(name)),
            Self::Uuid => {
                let field = Field::new(name, DataType::FixedSizeBinary(16), true);
                Some(field.with_metadata(extension(UUID_EXTENSION)))
            }
            Self::Binary { types } => match &**types {
                [only] => field(only.clone()),
                several if several.contains(&DataType::LargeBinary) => field(DataType::LargeBinary),
                _ => field(DataType::Binary),
            },
            Self::Date { types, .. } => {
                field(if types.len() == 1 { types[0].clone() } else { DataType::Date64 })
            }
            Self::Time { types, .. } if types.len() == 1 => field(types[0].clone()),
            Self::Time { unit: unit @ (TimeUnit::Second | TimeUnit::Millisecond), .. } => {
                field(DataType::Time32(*unit))
            }
            Self::Time { unit, .. } => field(DataType::Time64(*unit)),
            Self::Timestamp { units, range } => {
                field(DataType::Timestamp(unit_of(units, *range)?, None))
            }
            Self::Duration { units, range } => field(DataType::Duration(unit_of(units, *range)?)),
            Self::Instant { units, range, zones } => {
                let zone = if zones.len() == 1 { zones.first()?.clone() } else { UTC.into() };
                field(DataType::Timestamp(unit_of(units, *range)?, Some(zone)))
            }
            Self::List { item, is_large, fixed, name: part } => {
                let item = Arc::new(item.field(part, &format!("{path}[]"), conflicts));
                field(match (fixed, is_large) {
                    (Some(length), _) => DataType::FixedSizeList(item, *length),
                    (None, true) => DataType::LargeList(item),
                    (None, false) => DataType::List(item),
                })
            }
            Self::Record { fields } if fields.is_empty() => None,
            Self::Record { fields } if fields.len() > KEYS_MAX => Some(json_field(name)),
            Self::Record { fields } => {
                let part = |(name, part): &(String, Observed)| {
                    part.field(name, &format!("{path}.{name}"), conflicts)
                };
                field(DataType::Struct(fields.iter().map(part).collect()))
            }
            Self::Map { entries, key, value, is_sorted } => {
                let DataType::Struct(parts) = entries.data_type() else { return None };
                let key = key
                    .field(parts[0].name(), &format!("{path} (keys)"), conflicts)
                    .with_nullable(false);
                let value = value.field(parts[1].name(), &format!("{path} (values)"), conflicts);
                let parts = DataType::Struct(Fields::from(vec![key, value]));
                field(DataType::Map(Arc::new(Field::new(entries.name(), parts, false)), *is_sorted))
            }
        }
    }

    /// Returns the word for values of this kind.
    fn word(&self) -> String {
        match self {
            Self::Boolean => "bool",
            Self::Integer { .. } => "integer",
            Self::Float { .. } => "float",
            Self::Decimal { .. } => "decimal",
            Self::Text { .. } => "text",
            Self::Json => "JSON",
            Self::Uuid => "UUID",
            Self::Binary { .. } => "bytes",
            Self::Date { .. } => "date",
            Self::Time { .. } => "time of day",
            Self::Timestamp { .. } => "time without zone",
            Self::Instant { .. } => "time with zone",
            Self::Duration { .. } => "duration",
            Self::List { .. } => "list",
            Self::Record { .. } => "dictionary",
            Self::Map { .. } => "map",
        }
        .to_owned()
    }
}

/// Returns the type of integers with these widths in bytes and this range.
fn integer(signed: u8, unsigned: u8, range: Range) -> DataType {
    let signed_type = |width| match width {
        1 => DataType::Int8,
        2 => DataType::Int16,
        4 => DataType::Int32,
        _ => DataType::Int64,
    };
    match (signed, unsigned) {
        (signed, 0) => signed_type(signed),
        (0, 1) => DataType::UInt8,
        (0, 2) => DataType::UInt16,
        (0, 4) => DataType::UInt32,
        (0, _) => DataType::UInt64,
        (signed, unsigned @ ..8) => signed_type(signed.max(2 * unsigned)),
        _ => match range {
            Some((least, most)) if least < 0 && most > i128::from(i64::MAX) => {
                DataType::Decimal128(20, 0)
            }
            Some((_, most)) if most > i128::from(i64::MAX) => DataType::UInt64,
            _ => DataType::Int64,
        },
    }
}

/// Returns the decimal type with so many digits before and after the point.
fn decimal(whole: u8, scale: u8) -> Option<DataType> {
    let precision = whole.checked_add(scale)?.max(1);
    match precision {
        ..=38 => Some(DataType::Decimal128(precision, scale as i8)),
        39..=DIGITS_MAX => Some(DataType::Decimal256(precision, scale as i8)),
        _ => None,
    }
}

/// Returns the finest unit, or `None` if its 64 bits do not hold the range.
fn unit_of(units: &BTreeSet<TimeUnit>, range: Range) -> Option<TimeUnit> {
    let unit = *units.last()?;
    let factor = i128::from(1_000_000_000 / per_second(unit));
    let holds = |nanoseconds: i128| i64::try_from(nanoseconds.div_euclid(factor)).is_ok();
    (units.len() == 1 || range.is_none_or(|(least, most)| holds(least) && holds(most)))
        .then_some(unit)
}

/// Returns the type that holds values of several kinds without loss.
fn common(kinds: &[&Seen]) -> Option<DataType> {
    let (mut signed, mut unsigned) = (0, 0);
    let (mut integers, mut floats): (Range, Option<(bool, Range)>) = (None, None);
    let mut digits: Option<(u8, u8)> = None;
    for seen in kinds {
        match &seen.kind {
            Kind::Integer { signed: s, unsigned: u, range } => {
                (signed, unsigned) = (*s, *u);
                integers = *range;
            }
            Kind::Float { is_whole, range, .. } => floats = Some((*is_whole, *range)),
            Kind::Decimal { whole, scale, .. } => digits = Some((*whole, *scale)),
            Kind::Date { .. } | Kind::Timestamp { .. } => return dates_and_times(kinds),
            _ => return None,
        }
    }
    let mut whole = integers;
    match (floats, digits) {
        (Some((true, range)), None) => {
            widen(&mut whole, range);
            // 64 bits hold every whole floating-point number that is left.
            let signed = if whole.is_some_and(|(least, _)| least < 0) || unsigned == 0 {
                8.max(signed)
            } else {
                signed
            };
            Some(integer(signed, unsigned, whole))
        }
        (Some((false, _)), None) => {
            let is_exact =
                |(least, most): (i128, i128)| least >= -EXACT_IN_FLOAT && most <= EXACT_IN_FLOAT;
            integers.is_none_or(is_exact).then_some(DataType::Float64)
        }
        (Some((false, _)), Some(_)) => None,
        (floats, Some((digits, scale))) => {
            widen(&mut whole, floats.and_then(|(_, range)| range));
            let most =
                whole.map_or(0, |(least, most)| least.unsigned_abs().max(most.unsigned_abs()));
            decimal(digits.max(most.checked_ilog10().map_or(0, |power| power as u8 + 1)), scale)
        }
        (None, None) => None,
    }
}

/// Returns the type of days beside times without a zone.
fn dates_and_times(kinds: &[&Seen]) -> Option<DataType> {
    let (mut units, mut all) = (BTreeSet::from([TimeUnit::Second]), None);
    for seen in kinds {
        match &seen.kind {
            Kind::Date { range, .. } => widen(&mut all, *range),
            Kind::Timestamp { units: these, range } => {
                units.extend(these);
                widen(&mut all, *range);
            }
            _ => return None,
        }
    }
    Some(DataType::Timestamp(unit_of(&units, all)?, None))
}

#[cfg(test)]
mod tests;
