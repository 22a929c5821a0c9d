//! The declarations of a module, read from its PTX text.
//!
//! The simulated GPU does not run kernels, but the driver API needs their names and the layout of
//! their parameters: a launch must copy exactly that many bytes from each pointer of `kernelParams`.
//! It also needs their largest block, their static shared memory, and the global variables for
//! `cuModuleGetGlobal`. PTX declares all of this in plain text. The reader scans tokens: it parses
//! declarations and skips bodies, so that unknown instructions do not matter.
//!
//! A module that is not PTX (a cubin, a fat binary) is not read: see [`Module::opaque`].

#![forbid(unsafe_code)]

/// One parameter of a kernel, in bytes from the start of its parameter block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    pub offset: usize,
    pub size: usize,
}

/// A kernel (`.entry`) of a module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    pub name: String,
    /// `None` where the layout is unknown (the module was not PTX).
    pub params: Option<Vec<Param>>,
    /// Product of `.maxntid` or `.reqntid`; `None` means the device's own limit.
    pub max_threads: Option<u32>,
    /// Static shared memory in bytes.
    pub shared_bytes: usize,
}

impl Entry {
    /// A kernel of which nothing but its name is known.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// Bytes of the whole parameter block.
    pub fn param_bytes(&self) -> usize {
        let last = self.params.as_deref().and_then(<[Param]>::last);
        last.map_or(0, |param| param.offset + param.size)
    }
}

/// A variable in global or constant memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Global {
    pub name: String,
    pub bytes: usize,
}

/// What a module declares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Module {
    pub entries: Vec<Entry>,
    pub globals: Vec<Global>,
    /// True where the image was not PTX: any kernel name is then taken for one of its own.
    pub opaque: bool,
    /// Length of the image it was read from, where that is known.
    pub image_bytes: u64,
}

impl Module {
    /// A module of unknown content.
    pub fn opaque() -> Self {
        Self { opaque: true, ..Self::default() }
    }

    /// Reads PTX text. `None` where it has no `.version`, which every PTX file must begin with.
    pub fn parse(text: &str) -> Option<Self> {
        let tokens = tokens(text);
        if tokens.first() != Some(&".version") {
            return None;
        }
        let mut module = Self::default();
        let mut at = 0;
        while at < tokens.len() {
            at = match tokens[at] {
                ".entry" => module.entry(&tokens, at + 1),
                ".func" => skip_body(&tokens, at + 1),
                ".global" | ".const" => module.global(&tokens, at + 1),
                _ => at + 1,
            };
        }
        Some(module)
    }

    /// Reads the declaration that begins with the kernel's name at `at`; returns where it ends.
    fn entry(&mut self, tokens: &[&str], mut at: usize) -> usize {
        let Some(name) = tokens.get(at) else {
            return at;
        };
        let mut entry = Entry { params: Some(Vec::new()), ..Entry::named(name) };
        at += 1;
        if tokens.get(at) == Some(&"(") {
            let mut params = Vec::new();
            let mut offset: usize = 0;
            while at < tokens.len() && tokens[at] != ")" {
                let (variable, next) = variable(tokens, at + 1);
                if let Some(variable) = variable {
                    offset = offset.next_multiple_of(variable.align);
                    params.push(Param { offset, size: variable.bytes });
                    offset += variable.bytes;
                }
                at = next.min(tokens.len());
            }
            entry.params = Some(params);
        }
        while at < tokens.len() && tokens[at] != "{" && tokens[at] != ";" {
            if matches!(tokens[at], ".maxntid" | ".reqntid") {
                let dims = tokens[at + 1..].iter().filter(|token| **token != ",").take(3);
                let dims: Vec<u32> = dims.map_while(|token| token.parse().ok()).collect();
                entry.max_threads = Some(dims.iter().copied().fold(1, u32::saturating_mul));
            }
            at += 1;
        }
        let end = skip_body(tokens, at);
        for (index, token) in tokens[at..end].iter().enumerate() {
            if *token == ".shared" {
                let shared = variable(tokens, at + index + 1).0;
                entry.shared_bytes += shared.map_or(0, |shared| shared.bytes);
            }
        }
        self.entries.push(entry);
        end
    }

    fn global(&mut self, tokens: &[&str], at: usize) -> usize {
        let (variable, mut at) = variable(tokens, at);
        if let Some(Variable { name, bytes, .. }) = variable {
            self.globals.push(Global { name: name.to_owned(), bytes });
        }
        while at < tokens.len() && tokens[at] != ";" {
            at += 1;
        }
        at
    }
}

/// A larger variable is none: no device has the memory, and sums of sizes do not overflow.
const VARIABLE_BYTES_MAX: usize = 1 << 40;

/// A declared variable: `.align 8 .b8 name[16]`, `.u64 .ptr .global .align 4 name`.
struct Variable<'a> {
    name: &'a str,
    bytes: usize,
    align: usize,
}

/// Reads a declaration from `at`; returns it and the place of the `,` `)` `;` `=` that ends it.
fn variable<'a>(tokens: &[&'a str], mut at: usize) -> (Option<Variable<'a>>, usize) {
    let (mut name, mut scalar, mut vector) = (None, None, 1);
    let (mut count, mut align): (usize, Option<usize>) = (1, None);
    let mut pointer = false;
    while at < tokens.len() && !matches!(tokens[at], "," | ")" | ";" | "=" | "{") {
        match tokens[at] {
            ".ptr" => pointer = true,
            ".v2" => vector = 2,
            ".v4" => vector = 4,
            ".align" => {
                at += 1;
                // After `.ptr` the alignment is the pointee's, not the parameter's.
                let given = tokens.get(at).and_then(|token| token.parse().ok());
                if !pointer {
                    align = given;
                }
            }
            "[" => {
                at += 1;
                let length = tokens.get(at).and_then(|token| token.parse::<usize>().ok());
                count = count.saturating_mul(length.unwrap_or(1));
            }
            "]" => {}
            word => match (scalar_bytes(word), word.starts_with('.')) {
                (Some(bytes), _) => scalar = Some(bytes),
                (None, false) => name = name.or(Some(word)),
                (None, true) => {}
            },
        }
        at += 1;
    }
    let found = name.zip(scalar).and_then(|(name, scalar)| {
        let bytes = usize::saturating_mul(scalar * vector, count);
        let align = align.unwrap_or(scalar * vector).max(1);
        (bytes.max(align) <= VARIABLE_BYTES_MAX).then_some(Variable { name, bytes, align })
    });
    (found, at)
}

/// Bytes of a fundamental type.
fn scalar_bytes(word: &str) -> Option<usize> {
    Some(match word {
        ".b8" | ".u8" | ".s8" | ".pred" => 1,
        ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" => 2,
        ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" => 4,
        ".b64" | ".u64" | ".s64" | ".f64" => 8,
        ".b128" => 16,
        // Opaque handles of textures, surfaces and samplers are passed as 64-bit words.
        ".texref" | ".surfref" | ".samplerref" => 8,
        _ => return None,
    })
}

/// From a declaration to the end of its body, or of itself where it has none.
fn skip_body(tokens: &[&str], mut at: usize) -> usize {
    while at < tokens.len() && tokens[at] != "{" {
        if tokens[at] == ";" {
            return at;
        }
        at += 1;
    }
    let mut depth = 0;
    while at < tokens.len() {
        match tokens[at] {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            break;
        }
    }
    at
}

/// Words and punctuation, without comments, strings and white space.
fn tokens(text: &str) -> Vec<&str> {
    let bytes = text.as_bytes();
    let mut out = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text[at..];
        if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
        } else if rest.starts_with("/*") {
            at += rest.find("*/").map_or(rest.len(), |end| end + 2);
        } else if bytes[at] == b'"' {
            at += rest[1..].find('"').map_or(rest.len(), |end| end + 2);
        } else if is_word(bytes[at]) {
            let length = rest.bytes().take_while(|byte| is_word(*byte)).count();
            out.push(&rest[..length]);
            at += length;
        } else {
            let length = rest.chars().next().map_or(1, char::len_utf8);
            if length == 1 && !bytes[at].is_ascii_whitespace() && bytes[at] != 0 {
                out.push(&rest[..1]);
            }
            at += length;
        }
    }
    out
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%' | b'.')
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        // .entry commented_out()
        .version 7.0
        .target sm_70 /* any */
        .address_size 64
        .file 1 "a .entry inside a string"
        .visible .global .align 4 .u32 counter = 7;
        .const .align 8 .b8 table[2][16];
        .func (.param .b32 out) helper (.param .b32 in) { .reg .b32 %r<2>; ret; }
        .visible .entry spin(
            .param .u64 spin_param_0,
            .param .u64 .ptr .global .align 4 spin_param_1
        )
        .maxntid 128, 2, 1
        {
            .shared .align 4 .b8 tile[1024];
            { bra.uni L; }
        L:  ret;
        }
        .entry mixed(.param .u8 a, .param .f64 b, .param .align 16 .b8 c[20], .param .v2 .f32 d)
        { ret; }
        .entry bare { ret; }
    "#;

    #[test]
    fn declarations_are_read_and_bodies_skipped() {
        let module = Module::parse(TEXT).expect("this is PTX");
        let names: Vec<_> = module.entries.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["spin", "mixed", "bare"]);
        let spin = &module.entries[0];
        let both = vec![Param { offset: 0, size: 8 }, Param { offset: 8, size: 8 }];
        assert_eq!(spin.params, Some(both));
        assert_eq!((spin.max_threads, spin.shared_bytes), (Some(256), 1024));
        let mixed: Vec<_> =
            module.entries[1].params.iter().flatten().map(|p| (p.offset, p.size)).collect();
        assert_eq!(mixed, [(0, 1), (8, 8), (16, 20), (40, 8)]);
        assert_eq!(module.entries[1].param_bytes(), 48);
        assert_eq!(module.entries[2].param_bytes(), 0);
        let globals: Vec<_> = module.globals.iter().map(|g| (g.name.as_str(), g.bytes)).collect();
        assert_eq!(globals, [("counter", 4), ("table", 32)]);
    }

    #[test]
    fn what_is_not_ptx_is_refused_and_nothing_panics() {
        assert_eq!(Module::parse("int main() {}"), None);
        for end in 0..TEXT.len() {
            let _ = Module::parse(&TEXT[..end]);
            let _ = Module::parse(&format!(".version 1 {}", &TEXT[end..]));
        }
    }

    #[test]
    fn any_text_is_a_module_or_none() {
        gpuslice_fuzz::fuzz!("ptx", |bytes| {
            if let Some(module) = Module::parse(&String::from_utf8_lossy(bytes)) {
                for entry in &module.entries {
                    let end = entry.params.iter().flatten().map(|it| it.offset + it.size).max();
                    assert!(entry.param_bytes() >= end.unwrap_or(0), "{}", entry.name);
                }
            }
        });
    }
}
