"""What `auto` decides by: bounds, what was measured, how antecedents changed, and the choice of a lane."""
