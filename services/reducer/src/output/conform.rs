//! Arrays in the type that their column has in the file.

use std::sync::Arc;

use anyhow::{Context, bail};
use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, FixedSizeListArray, GenericListArray,
    GenericStringBuilder, MapArray, OffsetSizeTrait, StructArray, new_empty_array, new_null_array,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::{cast_with_options, interleave, nullif};
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Float64Type};
use protocol::{EXTENSION_NAME, JSON_EXTENSION};

use super::cells::{EXACT, Json, cells};
use super::observed::without_encoding;

/// Returns the array in the type of a column of the file. Fails if a value does not fit: it must not become a missing
/// value. `from`: the field of the array.
pub(super) fn conform(array: &ArrayRef, from: &Field, to: &Field) -> anyhow::Result<ArrayRef> {
    if array.data_type() == to.data_type() {
        return Ok(array.clone());
    }
    // Missing values have the type of the others, whatever type their own array has.
    let array = match without_encoding(array) {
        Some(array) if array.logical_null_count() < array.len() => array,
        _ => return Ok(new_null_array(to.data_type(), array.len())),
    };
    Ok(match (array.data_type(), to.data_type()) {
        (own, wanted) if own == wanted => array,
        (DataType::Union(fields, _), wanted) => {
            let union = array.as_union();
            let mut places = [0; 128];
            let mut children = Vec::new();
            for (id, field) in fields.iter() {
                places[id as usize] = children.len();
                children.push(conform(union.child(id), field, to)?);
            }
            let rows: Vec<(usize, usize)> = (0..union.len())
                .map(|row| (places[union.type_id(row) as usize], union.value_offset(row)))
                .collect();
            let children: Vec<&dyn Array> = children.iter().map(AsRef::as_ref).collect();
            match children.is_empty() {
                true => new_null_array(wanted, array.len()),
                false => interleave(&children, &rows)?,
            }
        }
        (DataType::Dictionary(_, values), wanted) => {
            let plain = cast_with_options(&array, values, &EXACT)?;
            let field = Field::new(from.name(), (**values).clone(), true);
            match wanted {
                DataType::Dictionary(..) => {
                    let values = conform(&plain, &field, &without_categories(to))?;
                    cast_with_options(&values, wanted, &EXACT)?
                }
                _ => conform(&plain, &field, to)?,
            }
        }
        (_, wanted @ DataType::Dictionary(..)) => {
            let values = conform(&array, from, &without_categories(to))?;
            cast_with_options(&values, wanted, &EXACT)?
        }
        (DataType::Struct(own), DataType::Struct(fields)) => {
            record(array.as_struct(), own, fields)?
        }
        (DataType::List(item), DataType::List(wanted)) => {
            list(array.as_list::<i32>(), item, wanted)?
        }
        (DataType::LargeList(item), DataType::LargeList(wanted)) => {
            list(array.as_list::<i64>(), item, wanted)?
        }
        (DataType::FixedSizeList(item, _), DataType::FixedSizeList(wanted, length)) => {
            let lists = array.as_fixed_size_list();
            let values = conform(lists.values(), item, wanted)?;
            Arc::new(FixedSizeListArray::try_new(
                wanted.clone(),
                *length,
                values,
                lists.nulls().cloned(),
            )?)
        }
        (DataType::List(item), DataType::LargeList(_)) => {
            let large = cast_with_options(&array, &DataType::LargeList(item.clone()), &EXACT)?;
            conform(&large, from, to)?
        }
        (DataType::FixedSizeList(item, _), DataType::List(_) | DataType::LargeList(_)) => {
            let lists = cast_with_options(&array, &DataType::List(item.clone()), &EXACT)?;
            conform(&lists, from, to)?
        }
        (
            DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..),
            DataType::Map(entries, is_sorted),
        ) => {
            // Only lists without items are among maps.
            let DataType::Struct(fields) = entries.data_type() else {
                bail!("a map without entries")
            };
            let pairs = StructArray::try_new(
                fields.clone(),
                fields.iter().map(|part| new_empty_array(part.data_type())).collect(),
                None,
            )?;
            let offsets = OffsetBuffer::new_zeroed(array.len());
            Arc::new(MapArray::try_new(
                entries.clone(),
                offsets,
                pairs,
                array.nulls().cloned(),
                *is_sorted,
            )?)
        }
        (DataType::Map(..), DataType::Map(entries, is_sorted)) => {
            let map = array.as_map();
            let (DataType::Struct(own), DataType::Struct(fields)) =
                (map.entries().data_type(), entries.data_type())
            else {
                bail!("a map without entries")
            };
            let parts = map.entries().columns().iter().zip(own).zip(fields);
            let parts = parts
                .map(|((part, own), wanted)| conform(part, own, wanted))
                .collect::<anyhow::Result<_>>()?;
            let pairs = StructArray::try_new(fields.clone(), parts, None)?;
            let (offsets, nulls) = (map.offsets().clone(), map.nulls().cloned());
            Arc::new(MapArray::try_new(entries.clone(), offsets, pairs, nulls, *is_sorted)?)
        }
        // Arrow reads text as a date, a time or a number.
        (DataType::Utf8 | DataType::LargeUtf8, wanted) if !is_text(wanted) => {
            cast_with_options(&array, wanted, &EXACT)?
        }
        (_, wanted) if is_text(wanted) => texts(&array, from, to)?,
        (own, wanted) => {
            let is_counted = own.is_floating() && (wanted.is_integer() || wanted.is_decimal());
            let array = if is_counted { finite(&array)? } else { array };
            cast_with_options(&array, wanted, &EXACT)?
        }
    })
}

fn is_text(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8)
}

fn without_categories(field: &Field) -> Field {
    match field.data_type() {
        DataType::Dictionary(_, values) => field.clone().with_data_type((**values).clone()),
        _ => field.clone(),
    }
}

/// Returns the values as the text that CSV has, or as JSON if the column is JSON.
fn texts(array: &ArrayRef, from: &Field, to: &Field) -> anyhow::Result<ArrayRef> {
    let is_json = to.metadata().get(EXTENSION_NAME).is_some_and(|name| name == JSON_EXTENSION);
    match to.data_type() {
        DataType::LargeUtf8 => texts_of::<i64>(array, from, to, is_json),
        _ => texts_of::<i32>(array, from, to, is_json),
    }
}

fn texts_of<Offset: OffsetSizeTrait>(
    array: &ArrayRef,
    from: &Field,
    to: &Field,
    is_json: bool,
) -> anyhow::Result<ArrayRef> {
    let cells = cells(array, from, to)?;
    let mut texts = GenericStringBuilder::<Offset>::new();
    let mut text = Vec::new();
    for row in 0..array.len() {
        if cells.is_null(row) {
            texts.append_null();
            continue;
        }
        text.clear();
        match is_json {
            true => cells.json(row, Json::Strict, &mut text),
            false => cells.text(row, &mut text),
        }
        texts.append_value(std::str::from_utf8(&text).context("a text that is not UTF-8")?);
    }
    Ok(Arc::new(texts.finish()))
}

/// Returns records with these keys.
fn record(record: &StructArray, own: &Fields, fields: &Fields) -> anyhow::Result<ArrayRef> {
    let part = |wanted: &FieldRef| match own.find(wanted.name()) {
        Some((position, field)) => conform(record.column(position), field, wanted),
        None => Ok(new_null_array(wanted.data_type(), record.len())),
    };
    let columns = fields.iter().map(part).collect::<anyhow::Result<_>>()?;
    let nulls = record.nulls().cloned();
    Ok(Arc::new(StructArray::try_new_with_length(fields.clone(), columns, nulls, record.len())?))
}

/// Returns lists whose values have the type of this field.
fn list<Offset: OffsetSizeTrait>(
    lists: &GenericListArray<Offset>,
    from: &FieldRef,
    to: &FieldRef,
) -> anyhow::Result<ArrayRef> {
    let values = conform(lists.values(), from, to)?;
    let (offsets, nulls) = (lists.offsets().clone(), lists.nulls().cloned());
    Ok(Arc::new(GenericListArray::try_new(to.clone(), offsets, values, nulls)?))
}

/// Returns floating-point numbers with nulls in place of NaN and infinity, which whole numbers do not have.
fn finite(column: &ArrayRef) -> anyhow::Result<ArrayRef> {
    let floats = cast_with_options(column, &DataType::Float64, &EXACT)?;
    let is_other = BooleanArray::from_unary(floats.as_primitive::<Float64Type>(), |number| {
        !number.is_finite()
    });
    Ok(nullif(&floats, &is_other)?)
}
