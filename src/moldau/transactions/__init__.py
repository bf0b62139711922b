"""Producer ids now; transactions later."""
