"""Graph passes and simplifying engines, verified before they are believed."""
