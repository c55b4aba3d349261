"""Pages of HTML that need nothing but themselves: one base, one style, one script, one way to make text safe."""
