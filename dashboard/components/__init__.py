"""Components that pages share: header, frames of figures, tables, states; each with its callbacks."""
