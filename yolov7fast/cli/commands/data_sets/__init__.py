"""Commands that write data sets or read nothing but one."""
