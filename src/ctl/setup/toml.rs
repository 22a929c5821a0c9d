//! TOML configurations, edited without touching foreign comments, order and spaces.

use super::file::place;
use anyhow::{Result, anyhow, bail};
use toml_edit::{Document, DocumentMut, Item, Table, TableLike, Value};

/// A document as read: its parts know their positions.
pub struct Read {
    document: Document<String>,
}

impl Read {
    /// # Errors
    /// It is not TOML, with line and column; or an edit would not preserve it.
    pub fn parse(text: &str) -> Result<Read> {
        let document = Document::parse(text.to_owned()).map_err(|error| anyhow!("{error}"))?;
        if document.clone().into_mut().to_string() != text {
            bail!(
                "an edit would not keep it as it is written; \
                 check for Windows line endings (fix: sed -i 's/\\r$//')"
            );
        }
        Ok(Read { document })
    }

    /// An editable copy.
    pub fn into_mut(self) -> DocumentMut {
        self.document.into_mut()
    }

    /// The table at a path, `None` if the path does not exist.
    ///
    /// # Errors
    /// The path holds another type, with its position.
    pub fn table(&self, path: &[&str]) -> Result<Option<&dyn TableLike>> {
        let mut at: &dyn TableLike = self.document.as_table();
        for key in path {
            let Some(item) = at.get(key) else {
                return Ok(None);
            };
            let Some(table) = item.as_table_like() else {
                return Err(self.wrong(key, item, "a table"));
            };
            at = table;
        }
        Ok(Some(at))
    }

    /// The value of a path's last key.
    ///
    /// # Errors
    /// A parent is not a table.
    pub fn item(&self, path: &[&str]) -> Result<Option<&Item>> {
        let (last, above) = path.split_last().unwrap_or((&"", &[]));
        let table = self.table(above)?;
        Ok(table.and_then(|table| table.get(last)))
    }

    /// The text at a path.
    ///
    /// # Errors
    /// The path holds another type, with its position.
    pub fn text(&self, path: &[&str]) -> Result<Option<&str>> {
        let found = self.item(path)?.map(|item| {
            let key = path.last().unwrap_or(&"");
            item.as_str().ok_or_else(|| self.wrong(key, item, "a text"))
        });
        found.transpose()
    }

    /// The truth value at a path.
    ///
    /// # Errors
    /// The path holds another type, with its position.
    pub fn flag(&self, path: &[&str]) -> Result<Option<bool>> {
        let found = self.item(path)?.map(|item| {
            let key = path.last().unwrap_or(&"");
            item.as_bool().ok_or_else(|| self.wrong(key, item, "true or false"))
        });
        found.transpose()
    }

    /// The list of texts at a path.
    ///
    /// # Errors
    /// The path holds another type, with its position.
    pub fn list(&self, path: &[&str]) -> Result<Option<Vec<&str>>> {
        let Some(item) = self.item(path)? else {
            return Ok(None);
        };
        let array = item.as_array();
        let texts = array.map(|all| all.iter().map(|value| value.as_str()).collect());
        let key = path.last().unwrap_or(&"");
        match texts {
            Some(Some(texts)) => Ok(Some(texts)),
            _ => Err(self.wrong(key, item, "a list of texts")),
        }
    }

    fn wrong(&self, key: &str, item: &Item, wanted: &str) -> anyhow::Error {
        let before = item.span().and_then(|span| self.document.raw().get(..span.start));
        let at = before.map_or_else(String::new, |before| format!("{}: ", place(before)));
        anyhow!("{at}{key} is {}, not {wanted}", item.type_name())
    }
}

/// The table at a path, created if missing, without headers for tables that only hold tables.
/// [`Read::table`] has checked the existing ones.
///
/// # Errors
/// The path holds another type.
pub fn table_at<'a>(document: &'a mut DocumentMut, path: &[&str]) -> Result<&'a mut dyn TableLike> {
    let mut at: &mut dyn TableLike = document.as_table_mut();
    for key in path {
        let item = at.entry(key).or_insert_with(|| {
            let mut table = Table::new();
            table.set_implicit(true);
            Item::Table(table)
        });
        let Some(table) = item.as_table_like_mut() else {
            bail!("{key} is no table");
        };
        at = table;
    }
    Ok(at)
}

/// Sets a key to this text; the formatting around it stays.
pub fn set_text(table: &mut dyn TableLike, key: &str, text: &str) {
    set(table, key, text.into());
}

/// Sets a key to this value; the formatting around it stays.
pub fn set(table: &mut dyn TableLike, key: &str, new: Value) {
    match table.get_mut(key) {
        Some(Item::Value(old)) => {
            let decor = old.decor().clone();
            *old = new;
            *old.decor_mut() = decor;
        }
        _ => drop(table.insert(key, toml_edit::value(new))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_shape_is_told_with_its_place() {
        let read = Read::parse("a = 1\n[b]\nc = [1]\nd.e = 'x'\n").expect("TOML");
        assert_eq!(read.text(&["b", "d", "e"]).expect("there"), Some("x"));
        assert!(read.table(&["x", "y"]).expect("nothing").is_none());
        for (said, why) in [
            (read.table(&["a"]).err(), "line 1, column 5: a is integer, not a table"),
            (read.text(&["b", "c"]).err(), "line 3, column 5: c is array, not a text"),
            (read.list(&["b", "c"]).err(), "not a list of texts"),
            (Read::parse("a = \n").err(), "line 1, column 5"),
            (Read::parse("a = 1\na = 2\n").err(), "line 2, column 1"),
            (Read::parse("a = 1\r\n").err(), "Windows"),
        ] {
            let said = said.expect("refused").to_string();
            assert!(said.contains(why), "{said}");
        }
    }

    #[test]
    fn tables_are_made_where_they_are_missing() {
        let text = "# why\n[a.b]\nc = 1 # one\n";
        let mut document = Read::parse(text).expect("TOML").into_mut();
        let table = table_at(&mut document, &["a", "d", "e"]).expect("made");
        table.insert("f", toml_edit::value("g"));
        assert_eq!(document.to_string(), format!("{text}\n[a.d.e]\nf = \"g\"\n"));
    }
}
