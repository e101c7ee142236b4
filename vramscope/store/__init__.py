"""The trace directory: schema, appending writer, reader. Only here and in export/ is Arrow known."""
