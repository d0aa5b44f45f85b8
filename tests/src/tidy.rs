//! Reads Rust and Markdown just well enough to hold the tree to its own rules.
//!
//! `code` blanks what is not code (comments, the insides of strings) and keeps every line where it
//! is, so that what follows may count braces and lines without being fooled.

/// The source with comments, string contents and character literals replaced by blanks.
pub fn code(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(next) = rest.chars().next() {
        let before = out.chars().next_back();
        let taken = match next {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => block_comment(rest),
            '"' => string(rest),
            'r' | 'b' | 'c' if !before.is_some_and(is_word) => prefixed_string(rest),
            '\'' => character(rest),
            _ => 0,
        };
        if taken == 0 {
            out.push(next);
            rest = &rest[next.len_utf8()..];
        } else {
            blank(&rest[..taken], &mut out);
            rest = &rest[taken..];
        }
    }
    out
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

fn blank(text: &str, out: &mut String) {
    out.extend(text.chars().map(|each| if each == '\n' { '\n' } else { ' ' }));
}

fn block_comment(text: &str) -> usize {
    let mut depth = 0usize;
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// The length of a string that begins with its quote.
fn string(text: &str) -> usize {
    let mut escaped = false;
    for (at, each) in text.char_indices().skip(1) {
        match each {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of `r"…"`, `r#"…"#`, `b"…"`, `br"…"`, `c"…"`; 0 where it is just a word.
fn prefixed_string(text: &str) -> usize {
    let letters = text.chars().take_while(|each| matches!(each, 'r' | 'b' | 'c')).count();
    let hashes = text[letters..].chars().take_while(|each| *each == '#').count();
    let quote = letters + hashes;
    if letters > 2 || !text[quote..].starts_with('"') {
        return 0;
    }
    if !text[..letters].contains('r') {
        return if hashes == 0 { quote + string(&text[quote..]) } else { 0 };
    }
    let end = format!("\"{}", "#".repeat(hashes));
    text[quote + 1..].find(&end).map_or(text.len(), |at| quote + 1 + at + end.len())
}

/// The length of a character literal; 0 where the quote begins a lifetime.
fn character(text: &str) -> usize {
    let mut inside = text[1..].chars();
    match (inside.next(), inside.next()) {
        (Some('\\'), Some(escaped)) => {
            let skip = 2 + escaped.len_utf8();
            text[skip..].find('\'').map_or(0, |at| skip + at + 1)
        }
        (Some(only), Some('\'')) => 2 + only.len_utf8(),
        _ => 0,
    }
}

/// `code` without the items that only tests are built with; their lines become empty.
pub fn without_tests(code: &str) -> String {
    let mut out = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(at) = rest.find("#[cfg(") {
        let Some(close) = rest[at..].find(")]").map(|end| at + end + 2) else { break };
        out.push_str(&rest[..at]);
        let end =
            if only_for_tests(&rest[at..close]) { close + item(&rest[close..]) } else { close };
        if end == close {
            out.push_str(&rest[at..close]);
        } else {
            blank(&rest[at..end], &mut out);
        }
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

fn only_for_tests(attribute: &str) -> bool {
    let mut words = attribute.split(|each| !is_word(each));
    words.any(|word| word == "test") && !attribute.contains("not(test")
}

/// The length of the item at the front: to its `;`, or to the end of its braces.
fn item(code: &str) -> usize {
    match code.find([';', '{']) {
        Some(at) if code[at..].starts_with('{') => at + braces(&code[at..]),
        Some(at) => at + 1,
        None => code.len(),
    }
}

/// The length of a block that begins with its brace.
fn braces(code: &str) -> usize {
    let mut depth = 0usize;
    for (at, each) in code.char_indices() {
        match each {
            '{' => depth += 1,
            '}' if depth == 1 => return at + 1,
            '}' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

/// Lines that are not blank only because a test was taken out of them: the length of a file
/// without its tests, empty lines and comments included.
pub fn lines_without_tests(source: &str) -> usize {
    let code = code(source);
    let kept = without_tests(&code);
    let taken = code.lines().zip(kept.lines()).filter(|(before, after)| before != after).count();
    source.lines().count() - taken
}

/// Name, line (from 1) and length in lines of every function that has a body.
pub fn functions(code: &str) -> Vec<(String, usize, usize)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        if code[..at].chars().next_back().is_some_and(is_word) {
            continue;
        }
        let name: String = code[at + 3..].chars().take_while(|each| is_word(*each)).collect();
        let Some(body) = body(&code[at..]) else { continue };
        let text = &code[at..at + body + braces(&code[at + body..])];
        if !name.is_empty() {
            let line = code[..at].matches('\n').count() + 1;
            found.push((name, line, text.matches('\n').count() + 1));
        }
    }
    found
}

/// Where the body of the function at the front begins; None for one without a body.
fn body(function: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (at, each) in function.char_indices() {
        match each {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.checked_sub(1)?,
            '{' if depth == 0 => return Some(at),
            ';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

/// What stands directly after `krate::`, groups taken apart: `a` and `b` of `krate::{a::X, b}`.
pub fn modules_used(code: &str, krate: &str) -> Vec<String> {
    let path = format!("{krate}::");
    let mut used = Vec::new();
    for (at, _) in code.match_indices(&path) {
        let rest = &code[at + path.len()..];
        if rest.starts_with('{') {
            used.extend(group(&rest[1..braces(rest) - 1]));
        } else {
            used.push(first_word(rest));
        }
    }
    used
}

fn group(inside: &str) -> Vec<String> {
    let mut depth = 0i32;
    let parts = inside.split(|each| {
        depth += match each {
            '{' => 1,
            '}' => -1,
            _ => 0,
        };
        each == ',' && depth == 0
    });
    parts.map(|part| first_word(part.trim_start())).filter(|word| !word.is_empty()).collect()
}

fn first_word(text: &str) -> String {
    text.chars().take_while(|each| is_word(*each)).collect()
}

/// The targets of the links and images of a page, code blocks and code spans left out.
pub fn links(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(page) {
        let line: String = line.split('`').step_by(2).collect::<Vec<_>>().join("``");
        for (at, _) in line.match_indices("](") {
            let target: String = line[at + 2..].chars().take_while(|each| *each != ')').collect();
            found.push(target.split(' ').next().unwrap_or("").to_string());
        }
    }
    found
}

/// The anchors of a page's headings, as forges make them.
pub fn anchors(page: &str) -> Vec<String> {
    let headings = prose(page).filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let text = line.trim_start_matches('#').trim().to_lowercase();
            let kept = text.chars().filter(|each| is_word(*each) || matches!(each, ' ' | '-'));
            kept.map(|each| if each == ' ' { '-' } else { each }).collect()
        })
        .collect()
}

/// The lines outside fenced blocks.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    page.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// The code spans of a page that are names, such as `f22_zero_size_is_an_error`.
pub fn names_in_code_spans(page: &str) -> Vec<String> {
    let spans = page.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    spans.filter(|span| !span.is_empty() && span.chars().all(is_word)).map(str::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_code_is_blank_and_lines_stay() {
        let source =
            "let a = \"{ \\\" // }\"; // {\nlet b = r#\"} \" {\"#; /* { /* } */\n{ */ let c = '{';";
        let code = code(source);
        assert!(!code.contains(['{', '}']), "{code}");
        assert_eq!(code.lines().count(), source.lines().count());
        for kept in ["let a =", "let b =", "let c ="] {
            assert!(code.contains(kept), "{kept} in {code}");
        }
    }

    #[test]
    fn lifetimes_are_not_characters() {
        let code = code("fn f<'a>(x: &'a str) -> char { '\\'' } // '");
        assert_eq!(code.trim_end(), "fn f<'a>(x: &'a str) -> char {      }");
        assert_eq!(functions(&code), [("f".to_string(), 1, 1)]);
    }

    #[test]
    fn tests_do_not_count() {
        let source =
            "fn a() {\n    b();\n}\n\n#[cfg(test)]\nmod tests {\n    fn c() {}\n}\nfn d() {}\n";
        assert_eq!(lines_without_tests(source), 5);
        assert!(!without_tests(&code(source)).contains("fn c"));
        assert!(without_tests(&code(source)).contains("fn d"));
        assert!(without_tests("#[cfg(not(test))]\nfn e() {}").contains("fn e"));
        assert!(!without_tests("#[cfg(test)]\nextern crate std;\nfn e() {}").contains("std"));
    }

    #[test]
    fn functions_are_measured_with_their_signature() {
        let code = "trait T {\n    fn none(&self);\n}\nfn two(a: [u8; 2]) -> u8 {\n    a[0]\n}\n";
        assert_eq!(functions(code), [("two".to_string(), 4, 3)]);
    }

    #[test]
    fn modules_are_read_from_paths_and_groups() {
        let code = "use core_x::{names::{A, B}, event};\nlet a = core_x::engine::Engine::new();";
        assert_eq!(modules_used(code, "core_x"), ["names", "event", "engine"]);
    }

    #[test]
    fn pages_give_links_anchors_and_names() {
        let page = "# One: two `three`\n[a](b.md#c) `[x](y)` and `f01_name`\n\
                    ```\n[no](no.md)\n# no\n```\n";
        assert_eq!(links(page), ["b.md#c"]);
        assert_eq!(anchors(page), ["one-two-three"]);
        assert!(names_in_code_spans(page).contains(&"f01_name".to_string()));
    }
}
