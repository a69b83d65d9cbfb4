/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors of inodes, for the time of an operation. */
#ifndef GAIAFS_FS_BORROW_H
#define GAIAFS_FS_BORROW_H

struct inode;

/* A descriptor (O_PATH | O_NOFOLLOW) that stands for the inode, or a negative errno. Until it is given back
 * the inode stays known, too. */
struct borrowed {
    struct inode *inode;
    int fd;
};

struct borrowed inode_borrow(struct inode *inode);
void inode_return(struct borrowed *borrowed);

/* A variable that is given back where its block ends. */
#define BORROWED __attribute__((cleanup(inode_return))) struct borrowed

#endif
