//! How an answer of the engine finds the connection that asked, and how a refusal reads.

use crate::slab::Key;
use gpuslice_engine::Token;
use gpuslice_wire::admin::Denial;
use gpuslice_wire::text::{Text, is_seen};

/// Why a command is refused.
pub type Denied = (Denial, String);

/// The token of events that need no answer. Keys' generations start at 1.
pub const NO_REPLY: Token = Token::NONE;

/// The token of what a client of an earlier daemon asked for. No key has it.
pub const EARLIER: Token = Token(1);

/// A connection as a token.
pub fn token_of(key: Key) -> Token {
    Token(u64::from(key.generation) << 16 | u64::from(key.slot))
}

/// The bit of tokens of agents' connections, which no key has.
const AGENT: u64 = 1 << 63;

/// An agent's connection as a token.
pub fn agent_token(key: Key) -> Token {
    Token(token_of(key).0 | AGENT)
}

/// Whether a token is of an agent's connection.
pub fn is_agents(token: Token) -> bool {
    token.0 & AGENT != 0
}

/// A token's connection.
pub fn key_of(token: Token) -> Key {
    Key { slot: token.0 as u16, generation: ((token.0 & !AGENT) >> 16) as u32 }
}

/// A refusal's text without control characters and invisible ones, cut to 512 bytes.
pub fn plain(text: &str) -> Text<512> {
    let clean: String = text.chars().filter(|c| is_seen(*c)).collect();
    Text::new(&shortened(clean, 512)).unwrap_or(Text::EMPTY)
}

/// A text of `most` bytes at most. A longer one ends after a word, with an ellipsis.
pub fn shortened(text: String, most: usize) -> String {
    const ELLIPSIS: &str = "\u{2026}";
    if text.len() <= most {
        return text;
    }
    let room = text.floor_char_boundary(most.saturating_sub(ELLIPSIS.len()));
    let begin = &text[..room];
    // One word that is longer than all the room is cut inside.
    let end = match text[room..].starts_with(' ') {
        true => room,
        false => begin.rfind(' ').filter(|at| *at > 0).unwrap_or(room),
    };
    begin[..end].trim_end().to_owned() + ELLIPSIS
}
