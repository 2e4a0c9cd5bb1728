//! Parquet's values as JSON.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bigdecimal::BigDecimal;
use bigdecimal::num_bigint::BigInt;
use half::f16;
use jiff::Span;
use jiff::civil::date;
use parquet::basic::{ConvertedType, LogicalType, TimeUnit};
use parquet::data_type::Int96;
use parquet::schema::types::ColumnDescriptor;
use serde_json::{Number, Value};

const SECOND: i128 = 1_000_000_000;
const DAY: i128 = 86_400 * SECOND;
/// Julian day of 1970-01-01.
const EPOCH: i128 = 2_440_588;
/// Maximum number of digits after the point of a decimal.
const MOST_SCALE: i32 = 1000;

/// What the physical values of a column stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Numbers and truth values as they are; bytes as Base64.
    Plain,
    /// Integers without a sign.
    Unsigned,
    /// Days since 1970.
    Date,
    /// A time of day in units of this many nanoseconds.
    Time(i128),
    /// A time since 1970 in units of this many nanoseconds; in UTC, or without a time zone.
    Timestamp {
        /// Nanoseconds of a unit.
        unit: i128,
        /// Whether it is in UTC.
        utc: bool,
    },
    /// An integer and the number of its digits after the point.
    Decimal(i32),
    /// Text in UTF-8.
    Text,
    /// A JSON document.
    Json,
    /// 16 bytes.
    Uuid,
    /// A float of 16 bits.
    Half,
    /// Null only.
    Nothing,
}

impl Meaning {
    /// Of a column, by its logical type or what older files have in its place.
    pub fn of(column: &ColumnDescriptor) -> Self {
        if let Some(logical) = column.logical_type_ref() {
            match logical {
                LogicalType::String | LogicalType::Enum => return Self::Text,
                LogicalType::Json => return Self::Json,
                LogicalType::Date => return Self::Date,
                LogicalType::Time(time) => return Self::Time(nanoseconds(&time.unit)),
                LogicalType::Timestamp(timestamp) => {
                    return Self::Timestamp {
                        unit: nanoseconds(&timestamp.unit),
                        utc: timestamp.is_adjusted_to_u_t_c,
                    };
                }
                LogicalType::Decimal(decimal) => return Self::decimal(decimal.scale),
                LogicalType::Integer(integer) if !integer.is_signed => return Self::Unsigned,
                LogicalType::Uuid => return Self::Uuid,
                LogicalType::Float16 => return Self::Half,
                LogicalType::Unknown => return Self::Nothing,
                _ => {}
            }
        }
        match column.converted_type() {
            ConvertedType::UTF8 | ConvertedType::ENUM => Self::Text,
            ConvertedType::JSON => Self::Json,
            ConvertedType::DATE => Self::Date,
            ConvertedType::TIME_MILLIS => Self::Time(1_000_000),
            ConvertedType::TIME_MICROS => Self::Time(1000),
            ConvertedType::TIMESTAMP_MILLIS => Self::Timestamp {
                unit: 1_000_000,
                utc: true,
            },
            ConvertedType::TIMESTAMP_MICROS => Self::Timestamp { unit: 1000, utc: true },
            ConvertedType::DECIMAL => Self::decimal(column.type_scale()),
            ConvertedType::UINT_8 | ConvertedType::UINT_16 | ConvertedType::UINT_32 | ConvertedType::UINT_64 => {
                Self::Unsigned
            }
            _ => Self::Plain,
        }
    }

    fn decimal(scale: i32) -> Self {
        match (0..=MOST_SCALE).contains(&scale) {
            true => Self::Decimal(scale),
            false => Self::Plain,
        }
    }

    /// An integer of 32 bits.
    pub fn int32(self, value: i32) -> Value {
        match self {
            Self::Unsigned => value.cast_unsigned().into(),
            _ => self.int64(value.into()),
        }
    }

    /// An integer of 64 bits.
    pub fn int64(self, value: i64) -> Value {
        let wide = i128::from(value);
        let shown = match self {
            Self::Unsigned => return value.cast_unsigned().into(),
            Self::Nothing => return Value::Null,
            Self::Date => day(wide),
            Self::Time(unit) => Some(time_of_day(wide * unit)).filter(|_| (0..DAY).contains(&(wide * unit))),
            Self::Timestamp { unit, utc } => timestamp(wide * unit, utc),
            Self::Decimal(scale) => return decimal(value.into(), scale),
            _ => None,
        };
        shown.map_or_else(|| value.into(), Value::String)
    }

    /// A time since 1970, as older files have it.
    pub fn int96(self, value: &Int96) -> Value {
        let [low, high, julian_day] = [0, 1, 2].map(|at| i128::from(value.data().get(at).copied().unwrap_or_default()));
        let nanoseconds = (julian_day - EPOCH) * DAY + (high << 32) + low;
        timestamp(nanoseconds, false).map_or(Value::Null, Value::String)
    }

    /// Bytes of any or of a fixed length.
    ///
    /// # Errors
    /// Fails if a text is not UTF-8.
    pub fn bytes(self, bytes: &[u8]) -> Result<Value, String> {
        let text = || std::str::from_utf8(bytes).map_err(|error| format!("text is not UTF-8: {error}"));
        Ok(match self {
            Self::Text => text()?.into(),
            Self::Json => serde_json::from_str(text()?).unwrap_or_else(|_| Value::from(text().unwrap_or_default())),
            Self::Decimal(scale) => decimal(BigInt::from_signed_bytes_be(bytes), scale),
            Self::Half if bytes.len() == 2 => float(f16::from_le_bytes([bytes[0], bytes[1]]).into()),
            Self::Uuid if bytes.len() == 16 => {
                uuid::Uuid::from_slice(bytes).map_or(Value::Null, |uuid| uuid.to_string().into())
            }
            _ => STANDARD.encode(bytes).into(),
        })
    }
}

/// A float; null where it is no number that JSON has.
pub fn float(value: f64) -> Value {
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

fn nanoseconds(unit: &TimeUnit) -> i128 {
    match unit {
        TimeUnit::MILLIS => 1_000_000,
        TimeUnit::MICROS => 1000,
        TimeUnit::NANOS => 1,
    }
}

/// A decimal with all its digits, as a JSON number.
fn decimal(unscaled: BigInt, scale: i32) -> Value {
    let text = BigDecimal::new(unscaled, scale.into()).to_plain_string();
    match serde_json::from_str::<Number>(&text) {
        Ok(number) => Value::Number(number),
        Err(_) => Value::String(text),
    }
}

/// `2024-02-29`; `None` for years beyond 9999.
fn day(days: i128) -> Option<String> {
    let span = Span::new().try_days(i64::try_from(days).ok()?).ok()?;
    Some(date(1970, 1, 1).checked_add(span).ok()?.to_string())
}

/// `2024-02-29T12:00:00.500000`, with `+00:00` where it is in UTC.
fn timestamp(nanoseconds: i128, utc: bool) -> Option<String> {
    let day = day(nanoseconds.div_euclid(DAY))?;
    let time = time_of_day(nanoseconds.rem_euclid(DAY));
    Some(format!("{day}T{time}{}", if utc { "+00:00" } else { "" }))
}

/// `12:00:00`, with 6 or 9 more digits where there are any.
fn time_of_day(nanoseconds: i128) -> String {
    let (seconds, fraction) = (nanoseconds / SECOND, nanoseconds % SECOND);
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let fraction = match fraction {
        0 => String::new(),
        fraction if fraction % 1000 == 0 => format!(".{:06}", fraction / 1000),
        fraction => format!(".{fraction:09}"),
    };
    format!("{hours:02}:{minutes:02}:{seconds:02}{fraction}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICROS: Meaning = Meaning::Timestamp { unit: 1000, utc: true };

    #[test]
    fn values_are_what_they_stand_for() {
        let naive = Meaning::Timestamp { unit: 1, utc: false };
        for (value, expected) in [
            (Meaning::Plain.int64(-7), "-7"),
            (Meaning::Unsigned.int64(-1), "18446744073709551615"),
            (Meaning::Unsigned.int32(-1), "4294967295"),
            (Meaning::Date.int32(19_782), r#""2024-02-29""#),
            (Meaning::Date.int32(-1), r#""1969-12-31""#),
            (Meaning::Date.int32(i32::MAX), "2147483647"),
            (Meaning::Time(1000).int64(3_723_000_004), r#""01:02:03.000004""#),
            (Meaning::Time(1000).int64(-1), "-1"),
            (MICROS.int64(0), r#""1970-01-01T00:00:00+00:00""#),
            (MICROS.int64(-1), r#""1969-12-31T23:59:59.999999+00:00""#),
            (naive.int64(1), r#""1970-01-01T00:00:00.000000001""#),
            (MICROS.int64(i64::MAX), "9223372036854775807"),
            (Meaning::Decimal(2).int32(110), "1.10"),
            (Meaning::Decimal(3).int64(-5), "-0.005"),
            (Meaning::Decimal(0).bytes(&[0xff]).unwrap(), "-1"),
            (Meaning::Half.bytes(&[0x00, 0x3c]).unwrap(), "1.0"),
            (Meaning::Plain.bytes(&[0, 255]).unwrap(), r#""AP8=""#),
            (Meaning::Text.bytes("π".as_bytes()).unwrap(), r#""π""#),
            (Meaning::Json.bytes(br#"{"a": [1]}"#).unwrap(), r#"{"a":[1]}"#),
            (Meaning::Json.bytes(b"{").unwrap(), r#""{""#),
            (
                Meaning::Uuid.bytes(&[1; 16]).unwrap(),
                r#""01010101-0101-0101-0101-010101010101""#,
            ),
            (float(f64::NAN), "null"),
            (float(0.1), "0.1"),
        ] {
            assert_eq!(value.to_string(), expected);
        }
        assert!(Meaning::Text.bytes(&[0xff]).unwrap_err().contains("UTF-8"));
    }
}
