"""Where two artifacts part: the first tensor that differs beyond tolerance while all that it is made of agrees."""
