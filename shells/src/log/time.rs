//! Wall times in log lines: UTC, as the clock counts them from its one reading at start.

use std::fmt;

/// Nanoseconds since 1970 as `2026-11-30 06:31:04,884`, the peer's form.
pub(super) struct PeerTime(pub u64);

/// The same as `2026-11-30T06:31:04.884Z`, for machines.
pub(super) struct IsoTime(pub u64);

impl fmt::Display for PeerTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_time(f, self.0, [" ", ",", ""])
    }
}

impl fmt::Display for IsoTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_time(f, self.0, ["T", ".", "Z"])
    }
}

/// The three marks stand before the hour, before the milliseconds and at the end.
fn write_time(f: &mut fmt::Formatter<'_>, nanos: u64, marks: [&str; 3]) -> fmt::Result {
    let [clock, point, end] = marks;
    let millis = nanos / 1_000_000;
    let (seconds, millis) = (millis / 1000, millis % 1000);
    let (days, seconds) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date_of(days);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    write!(f, "{year:04}-{month:02}-{day:02}{clock}")?;
    write!(f, "{hour:02}:{minute:02}:{second:02}{point}{millis:03}{end}")
}

/// The Gregorian date of a day since 1970. Years are counted from March, so that the leap day is
/// the last of its year and months have a closed form; 400 years are one era of 146097 days.
fn date_of(days_since_1970: u64) -> (u64, u64, u64) {
    let days = days_since_1970 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let leap_days = day_of_era / 1460 - day_of_era / 36_524 + day_of_era / 146_096;
    let year_of_era = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right_around_leap_days() {
        let shown = |seconds: u64| PeerTime(seconds * 1_000_000_000 + 7_000_000).to_string();
        assert_eq!(shown(0), "1970-01-01 00:00:00,007");
        assert_eq!(shown(951_782_399), "2000-02-28 23:59:59,007");
        assert_eq!(shown(951_782_400), "2000-02-29 00:00:00,007");
        assert_eq!(shown(1_709_251_200), "2024-03-01 00:00:00,007");
        assert_eq!(shown(4_107_542_400), "2100-03-01 00:00:00,007");
        assert_eq!(shown(1_796_007_464), "2026-11-30 02:57:44,007");
    }

    #[test]
    fn machines_get_their_own_form() {
        assert_eq!(IsoTime(1_796_007_464_884_000_000).to_string(), "2026-11-30T02:57:44.884Z");
    }
}
