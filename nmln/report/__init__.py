"""Results as figures, tables and pages."""
