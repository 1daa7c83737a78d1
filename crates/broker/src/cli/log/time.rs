//! Timestamps as people write them: UTC, as in RFC 3339.

use highwater_storage::TimestampMs;

const DAY_MS: i64 = 86_400_000;

/// `2023-11-14T22:13:20.000Z`; a dash for "none", the number for what lies beyond the year 9999.
pub(crate) fn format(timestamp: TimestampMs) -> String {
    let ms = timestamp.0;
    if timestamp == TimestampMs::NONE {
        return "-".to_owned();
    }
    let (year, month, day) = civil(ms.div_euclid(DAY_MS));
    if !(0..=9999).contains(&year) {
        return ms.to_string();
    }
    let in_day = ms.rem_euclid(DAY_MS);
    let (hours, minutes, seconds) = (in_day / 3_600_000, in_day / 60_000 % 60, in_day / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}.{:03}Z", in_day % 1000)
}

/// Reads `2023-11-14`, `2023-11-14T22:13`, `…:20`, `….5`, with or without `Z`, or `@` and milliseconds since 1970.
pub(crate) fn parse(text: &str) -> Option<TimestampMs> {
    if let Some(ms) = text.strip_prefix('@') {
        return ms.parse().ok().map(TimestampMs);
    }
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "00:00"));
    let mut date = date.splitn(3, '-').map(|part| number(part, 4));
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let (time, fraction) = time.split_once('.').unwrap_or((time, ""));
    let mut time = time.splitn(3, ':').map(|part| number(part, 2));
    let (hours, minutes, seconds) = (time.next()??, time.next()??, time.next().unwrap_or(Some(0))?);
    let days = days(year, month, day)?;
    if hours > 23 || minutes > 59 || seconds > 59 || fraction.len() > 9 {
        return None;
    }
    let ms = if fraction.is_empty() { 0 } else { number(&format!("{fraction:0<3}")[..3], 3)? };
    Some(TimestampMs(days * DAY_MS + ((hours * 60 + minutes) * 60 + seconds) * 1000 + ms))
}

fn number(digits: &str, most: usize) -> Option<i64> {
    let is_number = !digits.is_empty() && digits.len() <= most && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok())?
}

/// Days since 1970-01-01 of a date that exists.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years begin in March here, so that the leap day is the last of its year.
    let (shifted_year, shifted_month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let in_years =
        shifted_year * 365 + shifted_year.div_euclid(4) - shifted_year.div_euclid(100) + shifted_year.div_euclid(400);
    let days = in_years + (shifted_month * 153 + 2) / 5 + day - 1 - 719_468;
    (civil(days) == (year, month, day)).then_some(days)
}

/// The date that lies so many days after 1970-01-01.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468; // Since 0000-03-01.
    let era = days.div_euclid(146_097);
    let in_era = days.rem_euclid(146_097);
    let year_of_era = (in_era - in_era / 1460 + in_era / 36_524 - in_era / 146_096) / 365;
    let in_year = in_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * in_year + 2) / 153;
    let day = in_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_and_read() {
        let cases = [
            (1_700_000_000_000, "2023-11-14T22:13:20.000Z"),
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_123, "2000-02-29T00:00:00.123Z"),
            (-86_400_000, "1969-12-31T00:00:00.000Z"),
            (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        ];
        for (ms, text) in cases {
            assert_eq!(format(TimestampMs(ms)), text);
            assert_eq!(parse(text), Some(TimestampMs(ms)), "{text}");
        }
        assert_eq!(format(TimestampMs::NONE), "-");
        assert_eq!(format(TimestampMs(i64::MAX)), i64::MAX.to_string());
        let short =
            [("2023-11-14", 1_699_920_000_000), ("2023-11-14T22:13", 1_699_999_980_000), ("@17", 17), ("@-1", -1)];
        for (text, ms) in short {
            assert_eq!(parse(text), Some(TimestampMs(ms)), "{text}");
        }
        assert_eq!(parse("2023-11-14 22:13:20.5"), Some(TimestampMs(1_700_000_000_500)));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "2023",
            "2023-11",
            "2023-02-29",
            "2023-13-01",
            "2023-11-31",
            "2023-11-14T24:00",
            "2023-11-14T",
            "@",
            "-1-1-1",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
