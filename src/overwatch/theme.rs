//! Colours and glyphs. No information is shown by colour alone.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;
use ratatui::widgets::Block;

use crate::protocol::swarm::EngineStatus;

/// Whether to use colours (<https://no-color.org>).
#[derive(Clone, Copy, Debug)]
pub struct Theme {
    /// Whether colours are used.
    pub color: bool,
}

impl Theme {
    /// Returns a style in a colour.
    pub fn colored(self, color: Color) -> Style {
        match self.color {
            true => Style::new().fg(color),
            false => Style::new(),
        }
    }

    /// Returns a bold style in a colour.
    pub fn strong(self, color: Color) -> Style {
        self.colored(color).add_modifier(Modifier::BOLD)
    }

    /// Returns the style of labels and frames.
    pub fn faint(self) -> Style {
        self.colored(Color::DarkGray)
    }

    /// Returns the style of the selected row.
    pub fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// Returns a state's style.
    pub fn state(self, status: EngineStatus) -> Style {
        self.strong(state_color(status))
    }

    /// Returns the style of a message's author.
    pub fn author(self, role: &str) -> Style {
        self.strong(match role {
            "assistant" => Color::Green,
            "user" => Color::Cyan,
            "tool" | "function" => Color::Yellow,
            _ => Color::Magenta,
        })
    }

    /// Returns a frame with a title.
    pub fn block<'a>(self, title: impl Into<String>) -> Block<'a> {
        let title = Span::styled(format!(" {} ", title.into()), self.strong(Color::Cyan));
        Block::bordered().border_style(self.faint()).title(title)
    }
}

fn state_color(status: EngineStatus) -> Color {
    match status {
        EngineStatus::Rolling => Color::Green,
        EngineStatus::RollingPost => Color::Yellow,
        EngineStatus::WeightSyncing | EngineStatus::WeightExporting => Color::Magenta,
        EngineStatus::Booting => Color::Cyan,
        EngineStatus::Offline => Color::Gray,
        EngineStatus::CannotConnect => Color::Red,
    }
}

/// Returns a state's name without the wire prefix.
pub fn state_name(status: EngineStatus) -> &'static str {
    status.as_str().trim_start_matches("ENGINE.")
}

/// Returns what the engine does in a state, for legends.
pub fn state_word(status: EngineStatus) -> &'static str {
    match status {
        EngineStatus::Rolling => "rolling",
        EngineStatus::RollingPost => "finishing",
        EngineStatus::WeightSyncing => "updating",
        EngineStatus::WeightExporting => "exporting",
        EngineStatus::Booting => "booting",
        EngineStatus::Offline => "offline",
        EngineStatus::CannotConnect => "unreachable",
    }
}

/// Returns the glyph of a state in the phase band.
pub fn state_glyph(status: EngineStatus) -> &'static str {
    match status {
        EngineStatus::Rolling => "█",
        EngineStatus::RollingPost => "▓",
        EngineStatus::WeightSyncing | EngineStatus::WeightExporting => "▒",
        EngineStatus::Booting => "░",
        EngineStatus::Offline | EngineStatus::CannotConnect => "·",
    }
}
